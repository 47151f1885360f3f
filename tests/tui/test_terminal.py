"""The application in a pseudo terminal: what it leaves behind, whatever ends it, and what reaches it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.tui.fakes import FakeBackend, Stall
from tui.app import run
from tui.messages import EndReason, Finished, Text
from tui.options import Options
EVIL = {evil!r}
backend = FakeBackend([[*(Text(c) for c in EVIL), Finished(EndReason.END)], [Text("Half a reply"), Stall()]])
if {broken!r}:
    def fail(*_): raise RuntimeError("a fault of ours")
    backend.snapshot = fail
sys.exit(run(Options(home=Path({home!r}), target="here:7300", model="olmoe-1b-7b"), lambda: backend))
"""
EVIL = "EVIL \x1b]0;pwned\x07\x1b[?1049l\x1b[2J\x9b31m\x1bP1$r0m\x1b\\\x1b]52;c;cHduZWQ=\x07 DONE"
LEFT = b"\x1b[?1049l"
ENTERED = b"\x1b[?1049h"
LIMIT_S = 60.0


class Screen:
    """A program in a pseudo terminal."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self.output = b""

    def wait(self, condition: Callable[[bytes], bool], what: str) -> Self:
        """Read until the output is so."""
        until = time.monotonic() + LIMIT_S
        while not condition(self.output):
            assert time.monotonic() < until, f"waited in vain for {what}: {self.output[-2000:]!r}"
            if select.select([self.descriptor], [], [], 0.2)[0]:
                try:
                    piece = os.read(self.descriptor, 65536)
                except OSError:  # the other side is closed
                    piece = b""
                if not piece:
                    assert condition(self.output), f"ended before {what}: {self.output[-2000:]!r}"
                    return self
                self.output += piece
        return self

    def see(self, text: str) -> Self:
        """Read until a text was written."""
        return self.wait(lambda output: text.encode() in output, repr(text))

    def write(self, text: str) -> None:
        """Type."""
        os.write(self.descriptor, text.encode())

    def end(self) -> int:
        """Read to the end; the exit code, or minus the signal."""
        while True:
            try:
                piece = os.read(self.descriptor, 65536)
            except OSError:
                break
            if not piece:
                break
            self.output += piece
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def screen(home: Path, *, broken: bool = False) -> Iterator[Screen]:
    """The application, at 80 × 24."""
    code = PROGRAM.format(root=str(ROOT), home=str(home), evil=EVIL, broken=broken)
    pid, descriptor = pty.fork()
    if pid == 0:
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "SWARM_HOME": str(home),
            "COLORTERM": "truecolor",
        }
        os.execve(sys.executable, [sys.executable, "-c", code], environment)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = Screen(pid, descriptor)
    try:
        yield shown
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(descriptor)


def restored(output: bytes) -> bool:
    """The alternate screen is left for good, the cursor shown, the mouse let go, pasting plain again."""
    last = output.rpartition(ENTERED)[2]
    return all(code in last for code in (LEFT, b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l"))


def ready(shown: Screen) -> Screen:
    """Wait for the first screen with a model."""
    return shown.see("answers, with a context of")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_restore_the_terminal_and_keep_the_reply(home: Path, number: int, code: int) -> None:
    with screen(home) as shown:
        ready(shown)
        shown.write("one\r")
        shown.see("DONE")
        shown.write("two\r")
        shown.see("Half a reply")
        os.kill(shown.pid, number)
        assert shown.end() == code
        assert restored(shown.output)
    (saved,) = (home / "conversations").glob("*.md")
    assert "Half a reply" in saved.read_text()


def test_leaving_restores_the_terminal_and_no_control_of_a_model_got_through(home: Path) -> None:
    with screen(home) as shown:
        ready(shown)
        shown.write("one\r")
        shown.see("DONE")
        shown.write("/quit\r")
        assert shown.end() == 0
        assert restored(shown.output)
        for hostile in (b"\x1b]0;", b"\x1b]52;", b"\x1bP1$r", b"\x9b31m", b"\xc2\x9b", b"\x1b[2J\x1b"):
            assert hostile not in shown.output
        assert shown.output.count(LEFT) == 1
        assert "␛]0;pwned␇".encode() in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown.output)


def test_a_fault_restores_the_terminal(home: Path) -> None:
    with screen(home, broken=True) as shown:
        shown.wait(lambda output: LEFT in output, "the end")
        assert shown.end() != 0
        assert restored(shown.output)


def test_suspending_gives_the_terminal_back_and_returns(home: Path) -> None:
    with screen(home) as shown:
        ready(shown)
        shown.write("\x1a")
        shown.wait(restored, "the terminal back")
        for _ in range(int(LIMIT_S / 0.05)):
            _, status = os.waitpid(shown.pid, os.WUNTRACED | os.WNOHANG)
            if status and os.WIFSTOPPED(status):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("it did not stop")
        shown.output = b""
        os.kill(shown.pid, signal.SIGCONT)
        shown.wait(lambda output: ENTERED in output, "the screen again")
        shown.see("answers, with a context of")
        shown.write("\x11")
        assert shown.end() == 0
        assert restored(shown.output)
