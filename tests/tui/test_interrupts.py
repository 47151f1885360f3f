"""Ctrl-C while something runs, at any moment of it."""

import os
import signal
import threading

import pytest

from tui.interrupts import stopping


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_stops_what_runs_and_the_second_the_program() -> None:
    stopped: list[int] = []

    def run() -> None:
        with stopping(lambda: stopped.append(1)):
            interrupt()
            stopped.append(2)
            interrupt()
            stopped.append(3)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert stopped == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_without_signals_is_left_alone() -> None:
    ran: list[int] = []

    def work() -> None:
        with stopping(lambda: None):
            ran.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
