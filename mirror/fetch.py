"""A model whose bytes arrive on first use.

    async with open_mirror(Tree.of(manifest), store, replicas) as mirror:
        data = await mirror.read("model.safetensors", 8, 1000)

A read takes each chunk from the store, or from a flight: one fetch of one chunk, shared by all who want it,
which outlives a reader that gives up. A flight asks the replica that should answer first; when that one fails
or lies it asks the next, when it is slow a second one beside it, and when all have failed it has the holders
looked up again, once. What arrives is checked and stored in a thread while other chunks are still on their
way; only then is it anybody's. Who finds a chunk absent and comes for it when it has just landed gets it from
the store. A read that cannot be had fails (errno EIO, or the disk's own) and leaves nothing behind but the
chance to try again. Without replicas the mirror is offline and has what the store has.

Prefetched chunks wait in a queue of their own, so that what is being waited for goes first.
"""

import math
from array import array
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

import trio

from mirror.cas import Store
from mirror.errors import MirrorClosed, NotHere
from mirror.flight import Flight, Flights, Patience
from mirror.memory import buffer_of, keep_freed_memory
from mirror.plan import Ledger, Readahead
from mirror.replica import Buffer, Replicas
from mirror.tree import Chunk, Span, Tree

PREFETCHES_AT_ONCE = 12
"""Fewer than the flights there may be, so that what is waited for always finds one."""
LOOKED_UP_TOGETHER = 4
"""Crossing over to a thread costs more than to look there for a chunk in the store."""
TRUSTED_S = 10.0
"""How long what was seen in the store counts as being there when it is asked for ahead: it may be evicted, and looking
again for every hint would cost more than the hints bring."""

_ABSENT_S = -math.inf


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a mirror is, in bytes of distinct chunks. None of the three ever goes down."""

    wanted_bytes: int
    """What was read or asked for ahead so far."""
    verified_bytes: int
    """How much of it is here and right."""
    fetched_bytes: int
    """How much came over the network, what had to be fetched again included."""


class Mirror:
    """One model's files. Made by `open_mirror`; its methods are called in the trio thread."""

    def __init__(self, tree: Tree, store: Store, flights: Flights | None) -> None:
        self.tree = tree
        self.store = store
        self._flights = flights
        self._closed = False
        self._queue: dict[int, None] = {}
        self._absent: deque[tuple[Chunk, int]] = deque()
        """Chunks to be prefetched, and how many flights had landed before the store was looked at for them."""
        self._more = trio.Event()
        self._wanted = bytearray(tree.chunk_count)
        self._verified = bytearray(tree.chunk_count)
        self._seen_s = array("d", [_ABSENT_S]) * tree.chunk_count
        """When each chunk was last seen in the store."""
        self._wanted_bytes = 0
        self._verified_bytes = 0

    @property
    def offline(self) -> bool:
        """Whether it has only what the store has."""
        return self._flights is None

    @property
    def progress(self) -> Progress:
        """How far it is now."""
        fetched_bytes = self._flights.fetched_bytes if self._flights else 0
        return Progress(self._wanted_bytes, self._verified_bytes, fetched_bytes)

    async def read(self, path: str, offset: int, length: int, readahead: Readahead | None = None) -> Buffer:
        """Exactly `length` bytes of `path` from `offset`.

        A reader that may run forward brings a `Readahead` of its own. NoSuchFile and OutsideFile for what the
        model does not have; ChunkUnavailable, NotHere, or the disk's OSError (ENOSPC, say) when the bytes
        cannot be had.
        """
        spans = self.tree.spans(path, offset, length)
        self._want(span.chunk for span in spans)
        buffer = buffer_of(length)
        parts: list[tuple[Span, memoryview]] = []
        position = 0
        for span in spans:
            parts.append((span, buffer[position : position + span.stop - span.start]))
            position += span.stop - span.start
        looked = self._landings
        missing = await trio.to_thread.run_sync(self._from_store, parts)
        absent = {span.chunk.index for span, _ in missing}
        self._verify(span.chunk for span in spans if span.chunk.index not in absent)
        if readahead is not None:
            start, stop = readahead.advance(offset, length, self.tree.size(path))
            self.prefetch([(path, start, stop - start)])
        errors: list[OSError] = []
        async with trio.open_nursery() as nursery:
            for span, part in missing:
                nursery.start_soon(self._take, span, part, looked, errors, nursery.cancel_scope)
        if errors:
            raise errors[0]
        return buffer

    async def _take(
        self, span: Span, part: memoryview, looked: int, errors: list[OSError], rest: trio.CancelScope
    ) -> None:
        """Waits for one chunk and copies at once what is wanted of it, so that the chunk itself can go."""
        try:
            data = await self._flight(span.chunk, looked).landed()
        except OSError as error:
            errors.append(error)
            rest.cancel()
        else:
            part[:] = memoryview(data)[span.start : span.stop]
            self._verify([span.chunk])

    async def ensure(self, chunks: Iterable[Chunk]) -> None:
        """Returns when all of these chunks are in the store and right; errors as for `read`.

        Takes any number: only so many are under way at a time.
        """
        pending = iter(chunks)
        errors: list[OSError] = []

        async def work(rest: trio.CancelScope) -> None:
            for chunk in pending:
                self._want([chunk])
                try:
                    await self._have(chunk)
                except OSError as error:
                    errors.append(error)
                    rest.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(PREFETCHES_AT_ONCE):
                nursery.start_soon(work, nursery.cancel_scope)
        if errors:
            raise errors[0]

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        """Has these (path, offset, length) fetched when there is nothing more urgent; returns at once.

        What fails is fetched again by whoever reads it. NoSuchFile, OutsideFile.
        """
        chunks = [
            span.chunk for path, offset, length in ranges for span in self.tree.spans(path, offset, length)
        ]
        long_ago_s = trio.current_time() - TRUSTED_S
        doubtful = [chunk for chunk in chunks if self._seen_s[chunk.index] <= long_ago_s]
        self._want(doubtful)
        self._queue.update(dict.fromkeys(chunk.index for chunk in doubtful))
        if doubtful:
            self._tell_of_more()

    def has_seen(self, chunk: Chunk) -> bool:
        """Whether this chunk counts as verified; may be called from any thread."""
        return self._verified[chunk.index] != 0

    def saw(self, chunk: Chunk) -> None:
        """Counts a chunk that was read past the mirror, right from the store."""
        self._want([chunk])
        self._verify([chunk])

    async def run(self) -> None:
        """Works off what is to be prefetched; `open_mirror` runs it."""
        async with trio.open_nursery() as nursery:
            for _ in range(PREFETCHES_AT_ONCE):
                nursery.start_soon(self._prefetch)

    def close(self) -> None:
        """Fails every read that needs more than the store has, from now on and those under way."""
        self._closed = True
        self._queue.clear()
        self._absent.clear()
        if self._flights is not None:
            self._flights.close()

    async def _prefetch(self) -> None:
        while True:
            while not (self._absent or self._queue):
                await self._more.wait()
            try:
                if not self._absent:
                    await self._look_up()
                if self._absent:
                    chunk, looked = self._absent.popleft()
                    if self._seen_s[chunk.index] == _ABSENT_S:  # else a read had it fetched meanwhile
                        await self._fetch(chunk, looked)
            except OSError:
                # A hint has nobody to tell. Who reads this chunk tries again and is told.
                await trio.lowlevel.checkpoint()

    async def _look_up(self) -> None:
        """Takes some chunks from the queue and finds out which of them the store does not have."""
        chunks = [self.tree.chunk(index) for index in islice(self._queue, LOOKED_UP_TOGETHER)]
        for chunk in chunks:
            del self._queue[chunk.index]
        looked = self._landings
        held = await trio.to_thread.run_sync(self._held, chunks)
        self._verify(held)
        for chunk in chunks:
            if chunk not in held:
                self._seen_s[chunk.index] = _ABSENT_S
                self._absent.append((chunk, looked))
        self._tell_of_more()

    def _held(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Those that the store has. Runs in a thread."""
        return [chunk for chunk in chunks if self.store.has(chunk.address, chunk.size)]

    async def _fetch(self, chunk: Chunk, looked: int) -> None:
        await self._flight(chunk, looked).landed()
        self._verify([chunk])

    def _tell_of_more(self) -> None:
        self._more.set()
        self._more = trio.Event()

    async def _have(self, chunk: Chunk) -> None:
        looked = self._landings
        if await trio.to_thread.run_sync(self.store.has, chunk.address, chunk.size):
            self._verify([chunk])
        else:
            await self._fetch(chunk, looked)

    @property
    def _landings(self) -> int:
        return self._flights.landings if self._flights else 0

    def _flight(self, chunk: Chunk, looked: int) -> Flight:
        if self._closed:
            raise MirrorClosed(path=chunk.path)
        if self._flights is None:
            raise NotHere(chunk=chunk.index, path=chunk.path)
        return self._flights.start(chunk, looked)

    def _from_store(self, parts: list[tuple[Span, memoryview]]) -> list[tuple[Span, memoryview]]:
        """Fills what the store has; the rest. Runs in a thread."""
        return [
            (span, part)
            for span, part in parts
            if not self.store.read_into(span.chunk.address, span.chunk.size, span.start, part)
        ]

    def _want(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            if not self._wanted[chunk.index]:
                self._wanted[chunk.index] = 1
                self._wanted_bytes += chunk.size

    def _verify(self, chunks: Iterable[Chunk]) -> None:
        now_s = trio.current_time()
        for chunk in chunks:
            self._seen_s[chunk.index] = now_s
            if not self._verified[chunk.index]:
                self._verified[chunk.index] = 1
                self._verified_bytes += chunk.size


@asynccontextmanager
async def open_mirror(
    tree: Tree,
    store: Store,
    replicas: Replicas | None = None,
    *,
    ledger: Ledger | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[Mirror]:
    """Opens a model; offline when there are no replicas. A ledger shared between mirrors shares what is known
    of the replicas."""
    async with trio.open_nursery() as nursery:
        flights = None
        if replicas is not None:
            keep_freed_memory()
            flights = Flights(store, replicas, ledger or Ledger(), patience or Patience(), nursery)
        mirror = Mirror(tree, store, flights)
        nursery.start_soon(mirror.run)
        try:
            yield mirror
        finally:
            mirror.close()
            nursery.cancel_scope.cancel()
