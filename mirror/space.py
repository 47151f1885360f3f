"""The room a chunk store takes: which files it consists of, how many bytes they are, and who must go when it
is full.

All that several processes must agree on is here, under one lock:

    ROOT/chunks/ab/abcd…    the chunks
    ROOT/incoming/P/N       what process P is writing; P.lock beside it is locked while P lives
    ROOT/pins/P.NAME        addresses that may not be evicted while process P lives
    ROOT/usage              the bytes accounted for, as 20 digits
    ROOT/lock               guards the accounting
    ROOT/users              share-locked by every process that has the store open

Bytes are accounted for before they are written and until they are removed, so that the limit holds at every
moment. The first process to open the store alone has it counted afresh: a crash cannot leave the accounting
wrong.

Where nothing can be written (a read-only medium, another user's files) there is nothing to agree on: a store that is
there is opened without a lock, and read.
"""

import errno
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mirror.errors import StoreFull, StoreReadOnly
from mirror.files import Files
from mirror.pins import Pins
from swarm.units import format_bytes

ADDRESS_BYTES = 32
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Pinned:
    """What one process, with this id, keeps from eviction under a name: `bytes` of chunks that are in the store."""

    process: int
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A chunk found in the store, not checked. `bytes` is what its file takes, `used_ns` when it was last
    used."""

    address: bytes
    used_ns: int
    bytes: int


class Space:
    """The files of one store, for one process. Safe to use from several threads; OSError as the disk gives
    it."""

    def __init__(self, root: str, files: Files, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._root = root
        self._files = files
        self._mutex = threading.Lock()
        self._oldest: list[Kept] = []
        self._serial = 0
        self._folders: set[str] = set()
        self._process = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.pins = Pins(f"{root}/pins", files, self._process)
        self._incoming = f"{root}/incoming/{self._process}"
        self._user = self._alive = -1
        self.read_only = False
        """Whether nothing in the store can be changed from here."""
        try:
            for folder in ("chunks", "incoming", "pins"):
                files.make_directory(f"{root}/{folder}")
            with self._exclusive():
                self._enter()
        except OSError as error:
            self._leave()
            if error.errno not in _UNWRITABLE or not self._is_there():
                raise
            self.read_only = True
        except BaseException:
            self._leave()
            raise

    def _is_there(self) -> bool:
        """Whether there is a store that can be read."""
        try:
            return bool(self._files.list(f"{self._root}/chunks"))
        except OSError:
            return False

    def _enter(self) -> None:
        """Becomes a user of the store, called with the lock held."""
        files = self._files
        try:
            self._user = files.lock(f"{self._root}/users", exclusive=True, wait=False)
        except BlockingIOError:
            self._user = files.lock(f"{self._root}/users", exclusive=False, wait=True)
        else:
            self._remove(f"{self._root}/usage")
            files.share(self._user)
        self._clear_dead()
        self._alive = files.lock(f"{self._incoming}.lock", exclusive=True, wait=False)
        files.make_directory(self._incoming)

    def _leave(self) -> None:
        for descriptor in (self._alive, self._user):
            if descriptor >= 0:
                self._files.unlock(descriptor)
        self._user = self._alive = -1

    def path(self, address: bytes) -> str:
        """Where a chunk lies, if it is here."""
        name = address.hex()
        return f"{self._root}/chunks/{name[:2]}/{name}"

    def kept(self) -> Iterator[Kept]:
        """Every chunk in the store, not checked."""
        for folder in self._files.list(f"{self._root}/chunks"):
            if not folder.directory:
                continue
            for entry in self._files.list(f"{self._root}/chunks/{folder.name}"):
                with suppress(ValueError):
                    address = bytes.fromhex(entry.name)
                    if len(address) == ADDRESS_BYTES and not entry.directory:
                        yield Kept(address, entry.stamp.modified_ns, entry.stamp.size)

    def used_bytes(self) -> int:
        """Bytes of all chunks on disk, tags and what is being written included."""
        if self.read_only:
            return self._count()
        with self._exclusive():
            return self._account(0)

    def pinned(self) -> list[Pinned]:
        """What running processes keep from eviction."""
        if self.read_only:
            return []
        self.clear_dead()
        lists = self.pins.lists()
        sizes = {kept.address: kept.bytes for kept in self.kept()} if lists else {}
        return [
            Pinned(int(process.partition("-")[0]), name, sum(sizes.get(one, 0) for one in addresses))
            for (process, name), addresses in sorted(lists.items())
        ]

    def trim(self) -> int:
        """Evicts what was unused for longest until the limit is kept, or all that is left is pinned; the bytes
        freed."""
        if self.limit_bytes is None or self.read_only:
            return 0
        with self._exclusive():
            before = self._account(0)
            self._make_room(before - self.limit_bytes)
            return before - self._account(0)

    def reserve(self, size: int) -> str:
        """Accounts for `size` more bytes, evicting what was unused for longest when the limit asks for it.

        The path to write them to. StoreFull when nothing may be evicted, StoreReadOnly.
        """
        if self.read_only:
            raise StoreReadOnly(root=self._root)
        with self._exclusive():
            lacking = 0
            if self.limit_bytes is not None:
                lacking = self._make_room(self._account(0) + size - self.limit_bytes)
            if lacking <= 0:
                self._account(size)
                self._serial += 1
                return f"{self._incoming}/{self._serial}"
        raise self._full()

    def _full(self) -> StoreFull:
        """Why nothing more fits, and what would help."""
        assert self.limit_bytes is not None
        holders = [
            f"process {one.process} keeps {format_bytes(one.bytes)}" for one in self.pinned() if one.bytes
        ]
        reason = (
            " and ".join(holders) + " of it"
            if holders
            else "that is less than what is read at one time takes"
        )
        end = ", or end that process" if holders else ""
        return StoreFull(root=self._root, limit=format_bytes(self.limit_bytes), reason=reason, end=end)

    def release(self, temporary: str, size: int) -> None:
        """Takes a reservation back and removes what was written."""
        with suppress(OSError):  # what cannot be removed now is when the store is next opened or closed
            self._remove(temporary)
        with self._exclusive():
            self._account(-size)

    def install(self, temporary: str, address: bytes) -> bool:
        """Gives a complete file its name; False when another process had already stored the same chunk."""
        path = self.path(address)
        folder = path[: -2 * ADDRESS_BYTES - 1]
        if folder not in self._folders:
            self._files.make_directory(folder)
            self._folders.add(folder)
        with self._exclusive():
            try:
                self._files.close(self._files.open(path))
            except FileNotFoundError:
                self._files.rename(temporary, path)
                return True
            return False

    def evict(self, address: bytes, accounted: int | None = None) -> int:
        """Removes a chunk, whatever its state; the bytes that freed. `accounted` is what its file took when
        it was right, if it is known to be damaged. Nothing is removed from a store that is only read."""
        if self.read_only:
            return 0
        with self._exclusive():
            return self._evict(address, accounted)

    def clear_dead(self) -> None:
        """Removes what processes that are gone were writing, and their pins."""
        if not self.read_only:
            with self._exclusive():
                self._clear_dead()

    def close(self) -> None:
        """Removes what this process left unfinished and stops being a user of the store. Idempotent."""
        if self._alive >= 0:
            try:
                with self._exclusive():
                    self.pins.drop_all()
                    self._clear(self._incoming)
            finally:
                self._leave()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Every method below is called within this."""
        with self._mutex:
            descriptor = self._files.lock(f"{self._root}/lock", exclusive=True, wait=True)
            try:
                yield
            finally:
                self._files.unlock(descriptor)

    def _account(self, change: int) -> int:
        """Adds to the bytes accounted for and returns them; counts the store when nobody has yet."""
        path = f"{self._root}/usage"
        used, known = -1, b""
        try:
            descriptor = self._files.open(path, write=True)
        except FileNotFoundError:
            used = self._count()
            descriptor = self._files.create(path)
        try:
            if used < 0:
                known = self._files.read(descriptor, 20, 0)
                used = int(known) if len(known) == 20 and known.isdigit() else self._count()
            used = max(used + change, 0)
            text = b"%020d" % used
            if text != known:
                self._files.write(descriptor, [text])
            return used
        finally:
            self._files.close(descriptor)

    def _count(self) -> int:
        return sum(kept.bytes for kept in self.kept())

    def _make_room(self, excess: int) -> int:
        """Evicts what was unused for longest; how much of the excess is left, at most 0 when there is none."""
        for attempt in range(2):
            if excess <= 0:
                break
            if attempt:
                self._clear_dead()
                self._oldest = sorted(self.kept(), key=lambda kept: -kept.used_ns)
            pinned = self.pins.all()
            while self._oldest and excess > 0:
                kept = self._oldest.pop()
                if kept.address not in pinned:
                    excess -= self._evict(kept.address, None, kept.used_ns)
        return excess

    def _evict(self, address: bytes, accounted: int | None, unless_used_since_ns: int | None = None) -> int:
        path = self.path(address)
        try:
            descriptor = self._files.open(path)
        except FileNotFoundError:
            return 0
        try:
            stamp = self._files.stamp(descriptor)
        finally:
            self._files.close(descriptor)
        if unless_used_since_ns is not None and stamp.modified_ns > unless_used_since_ns:
            return 0
        self._account(
            0
        )  # so that it is not counted afresh without this one, which is then taken off once more
        self._remove(path)
        # Of a damaged file either may have been counted; too much counted is made good at the next start.
        self._account(-min(stamp.size, stamp.size if accounted is None else accounted))
        return stamp.size

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.unlink(path)

    def _clear_dead(self) -> None:
        folder = f"{self._root}/incoming"
        entries = self._files.list(folder)
        living = {self._process}
        locks = {entry.name for entry in entries if not entry.directory}
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.directory and f"{entry.name}.lock" not in locks:
                self._clear(path)
            elif not entry.directory and path != f"{self._incoming}.lock":
                try:
                    descriptor = self._files.lock(path, exclusive=True, wait=False)
                except BlockingIOError:
                    living.add(entry.name.removesuffix(".lock"))
                    continue
                try:
                    self._clear(path.removesuffix(".lock"))
                finally:
                    self._files.unlock(descriptor)
        self.pins.keep_only(living)

    def _clear(self, incoming: str) -> None:
        """Removes one process's folder, then the lock that says that it is there."""
        with suppress(FileNotFoundError):
            for entry in self._files.list(incoming):
                self._remove(f"{incoming}/{entry.name}")
            self._files.remove_directory(incoming)
        self._remove(f"{incoming}.lock")
