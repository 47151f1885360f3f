"""The three standard streams as a command needs them, whatever the shell gave: full, closed, of another encoding."""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_REASONS = {
    errno.ENOSPC: "the disk it goes to is full; free some space, or send it somewhere else",
    errno.EDQUOT: "the disk quota is used up where it goes; send it somewhere else",
    errno.EBADF: "it is closed; send it somewhere, such as > /dev/null",
}


class OutputLost(Exception):
    """Standard output takes nothing more, which ends a command. No OSError: nobody may take it for another file's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(_REASONS.get(error.errno or 0, error.strerror or type(error).__name__))
        self.reader_left = isinstance(error, BrokenPipeError)


class _Output(io.FileIO):
    """Standard output; what it does not take is OutputLost."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLost(error) from None


class _Complaints(io.FileIO):
    """Standard error; what it does not take is forgotten, for nobody may fail because there is nowhere to complain."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def mend() -> None:
    """Makes every stream usable: what cannot be encoded is replaced, a closed output fails when it is used, and
    standard error takes everything.

    A closed descriptor would be given to the next file or socket that is opened, and Python has no stream for it.
    """
    sys.stdin = _opened(sys.stdin, 0, os.O_RDONLY)
    complaints = _opened(sys.stderr, 2, os.O_WRONLY)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Complaints(2, "w", closefd=False)),
        encoding=complaints.encoding, errors="replace", line_buffering=True,
    )  # fmt: skip
    given = _opened(sys.stdout, 1, os.O_RDONLY)  # so that writing to what was closed is refused
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(1, "w", closefd=False)),
        encoding=given.encoding, errors="replace", line_buffering=given.isatty(),
    )  # fmt: skip


def drop_output() -> None:
    """Forgets what standard output did not take: the interpreter would complain of it at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _opened(stream: TextIO | None, number: int, flags: int) -> TextIO:
    if stream is None:
        descriptor = os.open(os.devnull, flags)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream
