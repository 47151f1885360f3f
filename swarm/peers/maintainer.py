"""Serving a model's bytes: chunk by chunk, from a directory that is watched or from the store of chunks.

A maintainer never vouches for what it sends (whoever asks checks the signature), but it notices when a file
is no longer the one that was hashed: it compares device, inode, size, mtime and ctime before and after each
read, and now and then without one. Such a file is withdrawn, for good: its chunks are answered with an error
and the operator is told.

Memory: a chunk a request, and at most `READS_PER_PEER` requests of one peer are in hand at the same time, so
nobody crowds out the others.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from mirror.tree import Tree
from swarm.errors import SwarmError
from swarm.peers.inventory import FileState, HashedFile, folder_of
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.data import Chunk, ReadChunk
from swarm.wire.rpc import Buffer, Handlers, Peer

READS_PER_PEER = 4
READS_AT_ONCE = 8
"""Threads that read from disk for all peers together."""
WATCH_EVERY_S = 2.0


class NotServedHere(SwarmError):
    """No model with the root {root} is served here; ask the tracker again who has it."""


class NoSuchChunk(SwarmError):
    """Chunk {index} was asked for; the model has {count}."""


class FileWithdrawn(SwarmError):
    """{path} is not the file that was hashed any more, so it is not served; start `swarm serve` again to sign
    what is there now."""


class ChunkNotHere(SwarmError):
    """Chunk {index} is not on this peer any more; ask another one."""


class ChunkSource(Protocol):
    """Where a maintainer reads one model's chunks from."""

    def held(self) -> IndexSet:
        """The chunks that can be read now."""
        ...

    def read(self, index: int) -> bytes:
        """The bytes of a chunk; blocks. Raises a SwarmError or OSError when they cannot be had."""
        ...


class DirectoryChunks:
    """The chunks of a model directory; a file that changed is withdrawn. Reads may run in several threads.

    Args:
        directory: The model's directory, or its GGUF file.
        files: Its files in the manifest's order, as they were hashed.
        on_withdrawn: Told the path of each file that is withdrawn, once, in the thread that noticed.
    """

    def __init__(
        self,
        directory: Path,
        files: Iterable[HashedFile],
        on_withdrawn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._directory = folder_of(directory)
        self._files = {file.entry.path: file for file in files}
        self._tree = Tree(file.entry for file in self._files.values())
        self._withdrawn: set[str] = set()
        self._on_withdrawn = on_withdrawn

    @property
    def withdrawn(self) -> frozenset[str]:
        """The files that are not served any more."""
        return frozenset(self._withdrawn)

    def held(self) -> IndexSet:
        """The chunks of all files that are still what was hashed."""
        return IndexSet.from_ranges(
            self._tree.numbers(path) for path in self._files if path not in self._withdrawn
        )

    def read(self, index: int) -> bytes:
        """The bytes of a chunk.

        Raises:
            NoSuchChunk: the model has fewer chunks.
            FileWithdrawn: the file changed since it was hashed.
            OSError: it cannot be read.
        """
        try:
            chunk = self._tree.chunk(index)
        except IndexError:
            raise NoSuchChunk(index=index, count=self._tree.chunk_count) from None
        if chunk.path in self._withdrawn:
            raise FileWithdrawn(path=chunk.path)
        file = self._files[chunk.path]
        try:
            descriptor = os.open(self._directory / chunk.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            self._withdraw(file)
        try:
            if FileState.of(os.fstat(descriptor)) != file.state:
                self._withdraw(file)
            data = os.pread(descriptor, chunk.size, chunk.offset)
            if len(data) != chunk.size or FileState.of(os.fstat(descriptor)) != file.state:
                self._withdraw(file)
        finally:
            os.close(descriptor)
        return data

    def check(self) -> None:
        """Looks at every file and withdraws those that changed."""
        for file in self._files.values():
            if file.entry.path in self._withdrawn:
                continue
            try:
                same = FileState.of((self._directory / file.entry.path).stat()) == file.state
            except (FileNotFoundError, NotADirectoryError):
                same = False
            if not same:
                self._note(file.entry.path)

    def _withdraw(self, file: HashedFile) -> None:
        self._note(file.entry.path)
        raise FileWithdrawn(path=file.entry.path)

    def _note(self, path: str) -> None:
        if path not in self._withdrawn:
            self._withdrawn.add(path)
            self._on_withdrawn(path)


@dataclass
class Served:
    """What was served since the start."""

    chunks: int = 0
    bytes: int = 0
    refused: int = 0


@dataclass
class _Caller:
    turns: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(READS_PER_PEER))
    requests: int = 0


class Maintainer:
    """Answers ReadChunk for the models given to it; models may be added and removed while it runs."""

    def __init__(self, models: Mapping[bytes, ChunkSource] | None = None) -> None:
        self.models: dict[bytes, ChunkSource] = dict(models or {})
        self.served = Served()
        self._callers: dict[PeerKey, _Caller] = {}
        self._threads = trio.CapacityLimiter(READS_AT_ONCE)

    def handlers(self) -> Handlers:
        """What to merge into `rpc.serve`."""
        return {ReadChunk: self._read_chunk}

    @property
    def busy_peers(self) -> int:
        """How many peers are waiting for a chunk now."""
        return len(self._callers)

    async def _read_chunk(self, caller: Peer, message: ReadChunk, _: Buffer) -> tuple[Chunk, Buffer]:
        source = self.models.get(message.root)
        if source is None:
            self.served.refused += 1
            raise NotServedHere(root=message.root)
        async with self._turn(caller.key):
            try:
                data = await trio.to_thread.run_sync(source.read, message.index, limiter=self._threads)
            except OSError as error:
                self.served.refused += 1
                # What the disk said is for the operator; a stranger learns that this peer cannot help.
                raise ChunkNotHere(index=message.index) from error
            except SwarmError:
                self.served.refused += 1
                raise
        self.served.chunks += 1
        self.served.bytes += len(data)
        return Chunk(), data

    @asynccontextmanager
    async def _turn(self, key: PeerKey) -> AsyncIterator[None]:
        """Waits while the peer has enough requests in hand; forgets the peer with its last one."""
        caller = self._callers.setdefault(key, _Caller())
        caller.requests += 1
        try:
            async with caller.turns:
                yield
        finally:
            caller.requests -= 1
            if not caller.requests:
                del self._callers[key]


async def watch(source: DirectoryChunks, every_s: float = WATCH_EVERY_S) -> None:
    """Looks at a directory's files now and then, until cancelled."""
    while True:
        await trio.sleep(every_s)
        await trio.to_thread.run_sync(source.check)
