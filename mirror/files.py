"""The file operations the chunk store is made of, as one small interface.

Everything the store does to a disk goes through `Files`, so that tests can record it, replay it in another
order, cut it short or make any one step fail. `Disk` is the real one.
"""

import ctypes
import fcntl
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

_LARGE_BYTES = 64 << 10
"""From here on it matters in what pages a file is kept in memory."""
_MADV_POPULATE_READ = 22  # from linux/mman.h, since Linux 5.14
_madvise = ctypes.CDLL(None).madvise  # mmap's own keeps the interpreter's lock while the disk is read
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Stamp(NamedTuple):
    """What tells one content of a file from another without reading it. Times are set by us, in ns, on
    purpose: the kernel's own may stand still for milliseconds, so that a write within that time would go
    unnoticed."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class Listed(NamedTuple):
    """One entry of a directory."""

    name: str
    directory: bool
    stamp: Stamp


class Files(Protocol):
    """File operations; every one may raise OSError. Paths are absolute, descriptors small integers."""

    def make_directory(self, path: str) -> None:
        """Makes a directory; no error when it is there."""

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory."""

    def create(self, path: str) -> int:
        """Makes a file and opens it for reading and writing. FileExistsError when it is there."""
        ...

    def open(self, path: str, *, write: bool = False) -> int:
        """Opens a file for reading and, if asked, writing. FileNotFoundError when it is not there."""
        ...

    def stamp(self, descriptor: int) -> Stamp:
        """The file's stamp as it is now."""
        ...

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        ...

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fills the buffers; the number of bytes read, fewer at the end of the file."""
        ...

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
        """Writes all of the parts, one after another, from the start of the file."""

    def drop(self, descriptor: int) -> None:
        """Begins to write the file to the disk, without waiting; what is there already leaves the memory."""

    def touch(self, descriptor: int, now_ns: int) -> None:
        """Sets the file's times."""

    def close(self, descriptor: int) -> None:
        """Closes a file."""

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name, in one step, in place of what had that name."""

    def unlink(self, path: str) -> None:
        """Removes a name. FileNotFoundError when it is not there."""

    def list(self, path: str) -> list[Listed]:
        """What a directory holds, in any order."""
        ...

    def sync(self, path: str) -> None:
        """Returns when everything written to the file system that holds `path` would survive a power loss."""

    def free_bytes(self, path: str) -> int:
        """What the file system that holds `path` has left for us."""
        ...

    def lock(self, path: str, *, exclusive: bool, wait: bool) -> int:
        """Locks a file, making it if need be, until `unlock` or the end of the process.

        BlockingIOError when another has it and `wait` is not set.
        """
        ...

    def share(self, descriptor: int) -> None:
        """Turns an exclusive lock into a shared one."""

    def unlock(self, descriptor: int) -> None:
        """Gives a lock back."""


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _load(descriptor: int, length: int) -> None:
    """Reads the start of a file into the page cache, in as large pages as can be. The kernel's own readahead begins
    with pages of 4 KiB, from which a chunk is read, now and again, at half the speed or less.

    Only a hint: what is wrong with the file is said when it is read.
    """
    with suppress(OSError, ValueError), mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        _madvise(start, length, mmap.MADV_HUGEPAGE)
        _madvise(start, 1, _MADV_POPULATE_READ)  # brings all of its large page


class Disk:
    """The operating system's files."""

    def make_directory(self, path: str) -> None:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106 (called by text path throughout)

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str, *, write: bool = False) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def stamp(self, descriptor: int) -> Stamp:
        return _stamp(os.fstat(descriptor))

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        if length >= _LARGE_BYTES and sys.platform == "linux":
            _load(descriptor, offset + length)
        return os.pread(descriptor, length, offset)

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(descriptor, buffers, offset)

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        offset = 0
        while left:
            written = os.pwritev(descriptor, left, offset)
            offset += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if left and written:
                left[0] = left[0][written:]

    def drop(self, descriptor: int) -> None:
        if sys.platform == "linux":  # elsewhere it does not write
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def touch(self, descriptor: int, now_ns: int) -> None:
        os.utime(descriptor, ns=(now_ns, now_ns))

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)  # noqa: PTH105

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def list(self, path: str) -> list[Listed]:
        found: list[Listed] = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # another process evicted it meanwhile
                    continue
                found.append(Listed(entry.name, stat.S_ISDIR(status.st_mode), _stamp(status)))
        return found

    def sync(self, path: str) -> None:
        if sys.platform == "linux":
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), path)
            finally:
                os.close(descriptor)
        else:
            os.sync()

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free

    def lock(self, path: str, *, exclusive: bool, wait: bool) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def share(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)

    def unlock(self, descriptor: int) -> None:
        os.close(descriptor)
