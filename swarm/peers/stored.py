"""Chunks that are served from the store of chunks: which of them are there, and fetching those that are not.

What is found lost or damaged when it is read is served and announced no more, until it was fetched again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

import trio

from mirror.cas import TAG_BYTES, Store
from mirror.errors import ChunkUnavailable
from mirror.fetch import Mirror
from mirror.tree import Tree
from swarm.peers.announce import Announcer
from swarm.peers.donor import Lending
from swarm.peers.maintainer import ChunkNotHere
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.race import plain_errors

FETCHED_AT_ONCE = 64
"""Chunks that are fetched before they are announced."""
LOOKED_UP_TOGETHER = 16
"""Chunks that one thread looks up, and checks."""


class StoredChunks:
    """The chunks of a model that are kept in the store; see `maintainer.ChunkSource`. Safe to use from several
    threads.

    on_lost: called when a chunk turned out to be lost, in the thread that read it.
    """

    def __init__(self, tree: Tree, store: Store, on_lost: Callable[[], None] = lambda: None) -> None:
        self._tree = tree
        self._store = store
        self._on_lost = on_lost
        self._changing = threading.Lock()
        self._ready = EMPTY
        self.paused = False

    @property
    def ready(self) -> IndexSet:
        """Those that are here and right, as far as is known."""
        return self._ready

    def held(self) -> IndexSet:
        """Those that are served now."""
        return EMPTY if self.paused else self._ready

    def read(self, index: int) -> bytes:
        """A chunk, checked. Raises ChunkNotHere, OSError."""
        if index not in self.held():
            raise ChunkNotHere(index=index)
        chunk = self._tree.chunk(index)
        try:
            data = self._store.read(chunk.address, chunk.size)
        except OSError:
            self._lose(index)
            raise
        if data is None:
            self._lose(index)
            raise ChunkNotHere(index=index)
        return bytes(data)

    def add(self, more: IndexSet) -> None:
        """These are here and right."""
        with self._changing:
            self._ready = self._ready | more

    def keep(self, wanted: IndexSet) -> None:
        """Serves only these from now on."""
        with self._changing:
            self._ready = self._ready & wanted

    def compare(self, files: Mapping[bytes, int]) -> None:
        """Serves only what is among the files of the store: their sizes by address, not checked."""
        chunks = [self._tree.chunk(index) for index in self._ready]
        there = (chunk.index for chunk in chunks if files.get(chunk.address) == chunk.size + TAG_BYTES)
        self.keep(IndexSet.of(there))

    def _lose(self, index: int) -> None:
        with self._changing:
            self._ready = self._ready - IndexSet.of([index])
        self._on_lost()


class Losses:
    """Chunks that are lost while they are served: they are announced no more at once, and whoever waits for that
    fetches them again.

    show: tells the owner what is served now.
    """

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show
        self._announcer: Announcer | None = None
        self._some = trio.Event()

    def announce_with(self, announcer: Announcer) -> None:
        """From now on a tracker is told."""
        self._announcer = announcer

    def note(self) -> None:
        """Some were lost. Called in the thread that read them; trio's must be another."""
        trio.from_thread.run_sync(self._note)

    async def wait(self) -> None:
        """Returns when some were lost since it last did."""
        await self._some.wait()
        self._some = trio.Event()

    def announce(self) -> None:
        """Has the tracker told what is held now, once there is one."""
        if self._announcer is not None:
            self._announcer.changed()

    def _note(self) -> None:
        self._some.set()
        self._show()
        self.announce()


def files_of(store: Store) -> dict[bytes, int]:
    """The sizes of a store's files by address. Blocks."""
    return {kept.address: kept.bytes for kept in store.kept()}


async def fetch_into(
    chunks: StoredChunks, wanted: IndexSet, mirror: Mirror, lending: Lending, announcer: Announcer
) -> None:
    """Has all of these in the store and served: first what is here, then the others, a few at a time, telling of each
    few. What cannot be had does not keep the others from coming. OSError when that is some of it, or our own disk
    fails; what is ready stays."""

    def took(part: Sequence[int]) -> None:
        if part:
            chunks.add(IndexSet.of(part))
            lending.now(ready=len(chunks.ready))
            announcer.changed()

    absent: list[int] = []
    for part in _parts(list(wanted - chunks.ready)):
        here = await _here(mirror, part)
        took(here)
        absent.extend(sorted(set(part).difference(here)))
    failure: ChunkUnavailable | None = None
    for part in _parts(absent):
        try:
            await mirror.ensure(mirror.tree.chunk(index) for index in part)
        except ChunkUnavailable as error:
            failure = failure or error
            took(await _here(mirror, part))
        else:
            took(part)
    if failure is not None:
        raise failure


def _parts(indices: list[int], length: int = FETCHED_AT_ONCE) -> list[list[int]]:
    return [indices[start : start + length] for start in range(0, len(indices), length)]


async def _here(mirror: Mirror, indices: list[int]) -> list[int]:
    """Those of these chunks that the store has, checked. Raises OSError."""
    here: list[int] = []

    def has(index: int) -> bool:
        chunk = mirror.tree.chunk(index)
        return mirror.store.has(chunk.address, chunk.size)

    async def look_up(some: list[int]) -> None:
        here.extend(await trio.to_thread.run_sync(lambda: [index for index in some if has(index)]))

    async with plain_errors() as nursery:
        for some in _parts(indices, LOOKED_UP_TOGETHER):
            nursery.start_soon(look_up, some)
    return here
