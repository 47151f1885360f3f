"""Ctrl-C while something runs: the first stops what runs, wherever the program is at that moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """For the length of a block a first Ctrl-C calls `stop`; a second one raises KeyboardInterrupt.

    Nothing changes in a thread that gets no signals, nor where Ctrl-C does not interrupt anyway.
    """
    usual = signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return

    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, usual)
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
