"""A program in a pseudo terminal, for tests and measurements."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

LIMIT_S = 60.0


class Screen:
    """A program in a pseudo terminal."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self.output = b""

    def wait(self, condition: Callable[[bytes], bool], what: str, limit_s: float = LIMIT_S) -> Self:
        """Read until the output is so."""
        until = time.monotonic() + limit_s
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
def screen_of(command: Sequence[str], home: Path, **variables: str) -> Iterator[Screen]:
    """A program in a pseudo terminal of 80 × 24; whatever is left of it in the end is killed."""
    pid, descriptor = pty.fork()
    if pid == 0:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "TERM": "xterm-256color",
            "SWARM_HOME": str(home),
            "COLORTERM": "truecolor",
            **variables,
        }
        os.execve(command[0], command, environment)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = Screen(pid, descriptor)
    try:
        yield shown
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(descriptor)
