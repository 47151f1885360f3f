"""Small files that must be whole or absent: written beside, synced, renamed over; and one change at a time."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, replace: bool = True) -> None:
    """Writes a file so that a crash leaves the old one or the new one, never a part.

    Makes missing parent folders (0700). With ``replace`` False an existing file is kept and FileExistsError
    raised. Raises OSError as the system gives it; no temporary file stays behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - it is a descriptor, not a path
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps everybody else who locks this file out for the length of a block: whoever reads, changes and writes
    another file within it loses nothing that others wrote.

    Makes the file, and missing parent folders (0700); waits. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
