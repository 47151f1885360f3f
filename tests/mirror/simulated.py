"""A disk in memory for the chunk store: it records what is done to it, loses power on request, and fails on
request.

Power loss: what was done before the last sync has happened. Of what came after, the changes of names have
happened up to some point, in order, as journals keep them, or with some of them missing; and of each write,
nothing, zeros of the right length, a torn half, a shorter file, or all of it.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from mirror.files import Disk, Files, Listed, Stamp

NAMES = ("mkdir", "rmdir", "create", "rename", "unlink")
Operation = tuple[str, *tuple[object, ...]]


@dataclass
class Inode:
    """A file's content and times."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    modified_ns: int = 0
    changed_ns: int = 0


class MemoryDisk:
    """`mirror.files.Files` in memory, with a log of every change."""

    def __init__(self) -> None:
        self.directories: set[str] = {"/"}
        self.names: dict[str, Inode] = {}
        self.log: list[Operation] = []
        self.free = 1 << 50
        self._inodes: dict[int, Inode] = {}
        self._numbers = count(1)
        self._open: dict[int, Inode] = {}
        self._descriptors = count(3)
        self._locked: dict[int, tuple[str, bool]] = {}
        self._ticks = count(1)
        self._mutex = threading.RLock()

    def make_directory(self, path: str) -> None:
        with self._mutex:
            while path not in self.directories:
                self._do("mkdir", path)
                path = os.path.dirname(path)  # noqa: PTH120

    def free_bytes(self, path: str) -> int:
        return self.free

    def remove_directory(self, path: str) -> None:
        if any(name.startswith(path + "/") for name in self.names):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._do("rmdir", path)

    def create(self, path: str) -> int:
        with self._mutex:
            if path in self.names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._do("create", path, next(self._numbers))
            return self.open(path, write=True)

    def open(self, path: str, *, write: bool = False) -> int:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "not found", path)
        descriptor = next(self._descriptors)
        self._open[descriptor] = self.names[path]
        return descriptor

    def stamp(self, descriptor: int) -> Stamp:
        inode = self._open[descriptor]
        return Stamp(inode.number, len(inode.data), inode.modified_ns, inode.changed_ns)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return bytes(self._open[descriptor].data[offset : offset + length])

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        done = 0
        for buffer in buffers:
            part = self.read(descriptor, len(buffer), offset + done)
            buffer[: len(part)] = part
            done += len(part)
        return done

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
        self._do("write", self._open[descriptor].number, b"".join(parts))

    def drop(self, descriptor: int) -> None:
        assert descriptor in self._open

    def touch(self, descriptor: int, now_ns: int) -> None:
        self._do("touch", self._open[descriptor].number, now_ns)

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def rename(self, source: str, target: str) -> None:
        if source not in self.names:
            raise FileNotFoundError(errno.ENOENT, "not found", source)
        self._do("rename", source, target)

    def unlink(self, path: str) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "not found", path)
        self._do("unlink", path)

    def list(self, path: str) -> list[Listed]:
        with self._mutex:
            if path not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "not found", path)
            start = path.rstrip("/") + "/"
            found = [
                Listed(name[len(start) :], True, Stamp(0, 0, 0, 0))
                for name in self.directories
                if name.startswith(start) and "/" not in name[len(start) :] and name != "/"
            ]
            for name, inode in self.names.items():
                if name.startswith(start) and "/" not in name[len(start) :]:
                    stamp = Stamp(inode.number, len(inode.data), inode.modified_ns, inode.changed_ns)
                    found.append(Listed(name[len(start) :], False, stamp))
            return found

    def sync(self, path: str) -> None:
        self._do("sync")

    def lock(self, path: str, *, exclusive: bool, wait: bool) -> int:
        with self._mutex:
            holders = [held for name, held in self._locked.values() if name == path]
            if holders and (exclusive or any(holders)):
                raise BlockingIOError(errno.EAGAIN, "locked", path)
            if path not in self.names:
                self._do("create", path, next(self._numbers))
            descriptor = next(self._descriptors)
            self._locked[descriptor] = (path, exclusive)
            return descriptor

    def share(self, descriptor: int) -> None:
        self._locked[descriptor] = (self._locked[descriptor][0], False)

    def unlock(self, descriptor: int) -> None:
        del self._locked[descriptor]

    def _do(self, *operation: object) -> None:
        with self._mutex:
            self.log.append(operation)  # type: ignore[arg-type]
            self.apply(*operation)

    def apply(self, kind: str, *what: object) -> None:
        """Carries out one recorded operation; what rests on another that is missing does nothing."""
        match kind, what:
            case "mkdir", (str(path),):
                self.directories.add(path)
            case "rmdir", (str(path),):
                self.directories.discard(path)
            case "create", (str(path), int(number)):
                self.names[path] = self._inode(number)
            case "rename", (str(source), str(target)):
                if source in self.names:
                    self.names[target] = self.names.pop(source)
                    self.names[target].changed_ns = next(self._ticks)
            case "unlink", (str(path),):
                self.names.pop(path, None)
            case "write", (int(number), bytes(data)):
                inode = self._inode(number)
                inode.data[: len(data)] = data
                inode.modified_ns = inode.changed_ns = next(self._ticks)
            case "touch", (int(number), int(now_ns)):
                inode = self._inode(number)
                inode.modified_ns, inode.changed_ns = now_ns, next(self._ticks)

    def _inode(self, number: int) -> Inode:
        return self._inodes.setdefault(number, Inode(number))

    def power_cycle(self) -> None:
        """Ends every process that has files open or locked."""
        self._open.clear()
        self._locked.clear()

    @property
    def open_descriptors(self) -> int:
        """Files that nobody has closed, and locks that nobody gave back."""
        return len(self._open) + len(self._locked)


def after_power_loss(log: Sequence[Operation], names_until: int, luck: Random, losing: bool) -> MemoryDisk:
    """The disk after power was lost at the end of `log`: changes of names up to `names_until` have happened
    (some of the unsynced ones not, if `losing`), each unsynced write in a way of its own."""
    synced = max((index for index, operation in enumerate(log) if operation[0] == "sync"), default=0)
    disk = MemoryDisk()
    for index, operation in enumerate(log):
        if index < synced:
            disk.apply(*operation)
        elif operation[0] in NAMES:
            if index < names_until and not (losing and luck.random() < 0.25):
                disk.apply(*operation)
        elif operation[0] == "write":
            data = operation[2]
            assert isinstance(data, bytes)
            half = len(data) // 2
            fate = luck.choice(
                [b"", bytes(len(data)), data[:half] + bytes(len(data) - half), data[:half], data]
            )
            disk.apply("write", operation[1], fate)
        elif luck.random() < 0.5:
            disk.apply(*operation)
    for path in [*disk.names, *disk.directories]:  # a name cannot outlive the directory it is in
        while (path := os.path.dirname(path)) not in disk.directories:  # noqa: PTH120
            disk.directories.add(path)
    disk._numbers = count(10_000)
    return disk


def power_losses(log: Sequence[Operation], seed: int) -> Iterator[tuple[int, MemoryDisk]]:
    """(operations done, disk) after power was lost at every moment of `log`, with every lag up to eight of
    the changes of names behind it, in order and with some missing, and one fate each for the unsynced
    writes."""
    luck = Random(seed)
    for end in range(1, len(log) + 1):
        for lag in range(min(8, end)):
            for losing in (False, True):
                yield end, after_power_loss(log[:end], end - lag, luck, losing)


class FaultyFiles:
    """Passes everything on to other files but makes the nth operation fail, a write after half of it."""

    def __init__(self, files: Files, nth: int, number: int) -> None:
        self.failed = ""
        self._files = files
        self._left = nth
        self._number = number

    def restart(self, nth: int) -> None:
        """Counts anew."""
        self._left = nth

    @property
    def reached(self) -> bool:
        """Whether there were as many operations; one that only gives something back does not fail."""
        return self._left <= 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        operation = getattr(self._files, name)

        def perform(*arguments: object, **options: object) -> object:
            self._left -= 1
            if self._left == 0 and name not in ("close", "unlock", "share"):
                self.failed = name
                if name == "write":
                    descriptor, parts = arguments
                    whole = b"".join(parts)  # type: ignore[call-overload]
                    operation(descriptor, [whole[: len(whole) // 2]])
                raise OSError(self._number, os.strerror(self._number))
            return operation(*arguments, **options)

        return perform


class Unwritable(Disk):
    """The operating system's files on a medium that can only be read."""

    def make_directory(self, path: str) -> None:
        if not os.path.isdir(path):  # noqa: PTH112
            self._refuse(path)

    def open(self, path: str, *, write: bool = False) -> int:
        return self._refuse(path) if write else super().open(path)

    def lock(self, path: str, *, exclusive: bool, wait: bool) -> int:
        return self._refuse(path)

    def create(self, path: str) -> int:
        return self._refuse(path)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)

    def touch(self, descriptor: int, now_ns: int) -> None:
        self._refuse(str(descriptor))

    @staticmethod
    def _refuse(path: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
