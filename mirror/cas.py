"""The chunk store: content under its sha256, on disk, shared by all models and by every process of this user.

A chunk's file holds its content and then 32 bytes: the BLAKE3 of the content keyed with its sha256, so that
content is bound to name and can be checked again four times faster. Where files lie, and how much room they
may take, is `space`'s affair. Why what is read here is right:

- Nothing is believed until this process has checked it: against sha256 when it arrives, against the keyed
  BLAKE3 when it is found. What was checked is remembered with the file's stamp (inode, size, times), which is
  compared again after every read; with another stamp, or after an hour, it is checked again.
- A chunk appears under its name by one rename, complete. That needs no sync: what a crash left torn, empty or
  of zeros fails its check, is removed, and counts as absent. Syncing (now and then, and `flush`) only bounds
  what is lost.
- What was stored goes to the disk at once and soon leaves the memory: new memory may cost more than the disk (a virtual
  machine waits 2 to 5 ms for a MiB), and a model may be larger than it. When it is read it is checked again, and
  stays in memory.
- A file evicted while it is read stays readable to its reader; two processes that store the same chunk store
  the same bytes. So sharing a store needs no agreement beyond the accounting.
"""

import errno
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from mirror.errors import WrongBytes
from mirror.files import Disk, Files, Stamp
from mirror.memory import buffer_of
from mirror.room import Room, measure
from mirror.space import Kept, Pinned, Space
from mirror.tree import Chunk

TAG_BYTES = 32
SYNC_BYTES = 1 << 30
"""After so many new bytes the store syncs, beside its work."""
IN_MEMORY = 64
"""So many of the chunks that were stored last stay in memory: who asked for them ahead will read them now."""
RECHECK_NS = 3600 * 10**9
"""A chunk that is read is checked anew, and marked as used, at this interval."""


class Store:
    """Chunks by address (their sha256, 32 bytes). Blocking; safe to use from several threads and
    processes."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        limit_bytes: int | None = None,
        files: Files | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Opens the store at `root`, making it when it is not there. `limit_bytes` bounds the chunks on disk,
        their tags included; None means no bound. Where nothing can be written, a store that is there is `read_only`.
        OSError when the directory cannot be used."""
        self.root = str(Path(root).absolute())
        self.healed = 0
        """Chunks that were found damaged and removed since the store was opened."""
        self._files: Files = files or Disk()
        self._clock_ns = clock_ns
        self._space = Space(self.root, self._files, limit_bytes)
        self._believed: dict[bytes, Stamp] = {}
        self._in_memory: deque[bytes] = deque()
        self._unsynced_bytes = 0
        self._syncing: threading.Thread | None = None

    # Reading

    def read(
        self, address: bytes, size: int, offset: int = 0, length: int | None = None
    ) -> memoryview | None:
        """Bytes of the chunk at `address`, which has `size` bytes; checked. None when it is not here, or was
        damaged and is now removed. OSError as the disk gives it."""
        buffer = buffer_of(size - offset if length is None else length)
        return buffer if self.read_into(address, size, offset, buffer) else None

    def read_into(self, address: bytes, size: int, offset: int, buffer: memoryview) -> bool:
        """Like `read`, into `buffer`; when False the buffer holds nothing of worth."""
        try:
            descriptor = self._files.open(self._space.path(address))
        except FileNotFoundError:
            return False
        try:
            believed = self._believed.get(address)
            if believed is not None and self._clock_ns() - believed.modified_ns < RECHECK_NS:
                done = self._files.read_into(descriptor, [buffer], offset) if buffer else 0
                # The stamp is taken after the bytes: had they been touched before, it would be another.
                if done == len(buffer) and self._files.stamp(descriptor) == believed:
                    return True
            content = self._check(descriptor, address, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            content = None  # the medium has lost it, which is one way of being damaged
        finally:
            self._files.close(descriptor)
        if content is None:
            self._discard(address, size)
            return False
        buffer[:] = content[offset : offset + len(buffer)]
        return True

    def has(self, address: bytes, size: int) -> bool:
        """Whether the chunk is here and right; reads all of it the first time."""
        return self.read_into(address, size, 0, memoryview(bytearray()))

    def _check(self, descriptor: int, address: bytes, size: int) -> memoryview | None:
        """The content, if the open file holds chunk `address`; it is then believed while its stamp stays."""
        stamp = self._files.stamp(descriptor)
        if stamp.size != size + TAG_BYTES:
            return None
        now_ns = self._clock_ns()
        if now_ns - stamp.modified_ns >= RECHECK_NS and not self.read_only:
            self._files.touch(descriptor, now_ns)
            stamp = self._files.stamp(descriptor)
        data = memoryview(self._files.read(descriptor, size + TAG_BYTES, 0))
        if len(data) != size + TAG_BYTES or blake3(data[:size], key=address).digest() != data[size:]:
            return None
        if self._files.stamp(descriptor) == stamp:
            self._believed[address] = stamp
        return data[:size]

    # Writing

    def put(self, address: bytes, data: bytes | bytearray | memoryview) -> None:
        """Checks a chunk and stores it; when this returns the chunk is believed.

        WrongBytes when it is not the chunk of that address, StoreFull when nothing may make room for it,
        OSError (ENOSPC and its like) as the disk gives it; then nothing of it is left behind.
        """
        found = hashlib.sha256(data).digest()
        if found != address:
            raise WrongBytes(address=address, found=f"{len(data)} bytes with the hash {found.hex()[:16]}…")
        if self.has(address, len(data)):
            return
        size = len(data) + TAG_BYTES
        tag = blake3(data, key=address).digest()
        temporary = self._space.reserve(size)
        installed = False
        try:
            descriptor = self._files.create(temporary)
            try:
                self._files.write(descriptor, [memoryview(data), tag])
                self._files.drop(descriptor)
                now_ns = self._clock_ns()
                self._files.touch(descriptor, now_ns)
                installed = self._space.install(temporary, address)
                stamp = self._files.stamp(descriptor)
            finally:
                self._files.close(descriptor)
        finally:
            if not installed:
                self._space.release(temporary, size)
        if installed and stamp.modified_ns == now_ns:
            self._believed[address] = stamp
        self._in_memory.append(address)
        if len(self._in_memory) > IN_MEMORY:
            self._drop(self._in_memory.popleft())
        self._sync_sometimes(size)

    def _drop(self, address: bytes) -> None:
        """Has a chunk leave the memory; what then comes from the disk is to be checked."""
        self._believed.pop(address, None)
        with suppress(OSError):  # it was stored, and may be evicted by now
            descriptor = self._files.open(self._space.path(address))
            try:
                self._files.drop(descriptor)
            finally:
                self._files.close(descriptor)

    def _sync_sometimes(self, size: int) -> None:
        self._unsynced_bytes += size
        if self._unsynced_bytes >= SYNC_BYTES and (self._syncing is None or not self._syncing.is_alive()):
            self._unsynced_bytes = 0
            self._syncing = threading.Thread(target=self._files.sync, args=(self.root,), name="store-sync")
            self._syncing.start()

    def flush(self) -> None:
        """Returns when all that was stored will survive a power loss."""
        self._unsynced_bytes = 0
        if not self.read_only:
            self._files.sync(self.root)

    # Looking after it

    @property
    def read_only(self) -> bool:
        """Whether it can only be read: nothing is added, evicted, removed or marked as used."""
        return self._space.read_only

    @property
    def limit_bytes(self) -> int | None:
        """The most bytes that chunks may take on disk."""
        return self._space.limit_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of all chunks on disk, tags and what is being written included."""
        return self._space.used_bytes()

    def kept(self) -> Iterator[Kept]:
        """Every chunk in the store, not checked."""
        return self._space.kept()

    def room_for(self, chunks: Iterable[Chunk]) -> Room:
        """The room there is for these chunks, all of them to be here at the same time."""
        wanted = {chunk.address: chunk.size + TAG_BYTES for chunk in chunks}
        free_bytes = self._files.free_bytes(self.root)
        self._space.clear_dead()
        return measure(wanted, self.kept(), self._space.pins.all(), free_bytes, self.limit_bytes)

    def pin(self, name: str, addresses: Collection[bytes]) -> None:
        """Keeps exactly these chunks from eviction and gc by any process under `name`, until the store is closed or
        this process ends."""
        if not self.read_only:
            self._space.pins.set(name, addresses)

    def unpin(self, name: str) -> None:
        """Lets go of what was pinned under `name`."""
        if not self.read_only:
            self._space.pins.drop(name)

    def pinned(self) -> list[Pinned]:
        """What running processes keep from eviction and gc, this one too."""
        return self._space.pinned()

    def trim(self) -> int:
        """Brings the store down to its limit, what was unused for longest first, as far as pins allow; the bytes
        freed."""
        return self._space.trim()

    def evict(self, addresses: Iterable[bytes]) -> int:
        """Removes those of these chunks that nobody pinned; the bytes freed."""
        pinned = self._space.pins.all()
        return sum(self._space.evict(address) for address in addresses if address not in pinned)

    def verify(self) -> Iterator[tuple[Kept, bool]]:
        """Checks every chunk against its sha256 and removes what is damaged, if it can: (chunk, whether it is
        right)."""
        for kept in list(self.kept()):
            try:
                descriptor = self._files.open(self._space.path(kept.address))
            except FileNotFoundError:  # evicted meanwhile
                continue
            try:
                content = self._check(descriptor, kept.address, kept.bytes - TAG_BYTES)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                content = None
            finally:
                self._files.close(descriptor)
            right = content is not None and hashlib.sha256(content).digest() == kept.address
            if not right:
                self._discard(kept.address, kept.bytes - TAG_BYTES)
            yield kept, right

    def gc(self, wanted: Collection[bytes]) -> int:
        """Removes every chunk that is neither wanted nor pinned, and what dead processes left; the bytes
        freed."""
        self._space.clear_dead()
        stays = frozenset(wanted)
        return self.evict(kept.address for kept in list(self.kept()) if kept.address not in stays)

    def _discard(self, address: bytes, size: int) -> None:
        self._believed.pop(address, None)
        if self.read_only:
            return
        self.healed += 1
        self._space.evict(address, size + TAG_BYTES)

    def close(self) -> None:
        """Gives up the store; what this process left unfinished is removed. Idempotent."""
        if self._syncing is not None:
            self._syncing.join()
        self._space.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
