"""A disk donor: keeps a part of a model's chunks for others, the part that fewest hold.

Chunks come through the mirror, each verified, are pinned in the store so that nothing else evicts them, and
are announced as they arrive.
"""

from functools import partial

import trio

from mirror.cas import Store
from mirror.fetch import Mirror
from mirror.tree import Tree
from swarm.peers.announce import Announcer
from swarm.peers.donor import Lending, keep_settled
from swarm.peers.maintainer import ChunkNotHere, Maintainer
from swarm.peers.models import OpenModel
from swarm.peers.room import find_room
from swarm.peers.session import Session
from swarm.trust.manifest import CHUNK_BYTES
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.messages.tracker import AssignChunks, Assigned, HeartbeatSeen

FETCHED_AT_ONCE = 64
"""Chunks that are fetched before they are announced."""
_WHAT, _REMEDY = "What is lent", "or lend less, with a smaller --size"


class StoredChunks:
    """The chunks of a model that are kept in the store; see `maintainer.ChunkSource`."""

    def __init__(self, tree: Tree, store: Store) -> None:
        self._tree = tree
        self._store = store
        self.ready = EMPTY
        self.paused = False

    def held(self) -> IndexSet:
        """Those that are served now."""
        return EMPTY if self.paused else self.ready

    def read(self, index: int) -> bytes:
        """A chunk, checked. Raises ChunkNotHere, OSError."""
        if index not in self.held():
            raise ChunkNotHere(index=index)
        chunk = self._tree.chunk(index)
        data = self._store.read(chunk.address, chunk.size)
        if data is None:
            raise ChunkNotHere(index=index)
        return bytes(data)


class DiskDonor:
    """See the module."""

    def __init__(
        self, session: Session, model: OpenModel, size_bytes: int, maintainer: Maintainer, lending: Lending
    ) -> None:
        self._session = session
        self._model = model
        self._size_bytes = size_bytes
        self._capacity = size_bytes // CHUNK_BYTES
        self._assigned = EMPTY
        self.lending = lending
        self.chunks = StoredChunks(model.mirror.tree, model.mirror.store)
        self._root = model.signed.manifest.root
        self._maintainer = maintainer
        maintainer.models[self._root] = self.chunks

    async def open(self) -> None:
        """Makes sure that there is room for what is lent. Raises NoRoom, LimitTooLow, OSError."""
        await find_room(self._model.mirror, _WHAT, most_bytes=self._size_bytes, remedy=_REMEDY)

    async def run(self, announcer: Announcer, seen: trio.MemoryReceiveChannel[HeartbeatSeen]) -> None:
        """Keeps what the tracker assigns, until cancelled."""
        announcer.held[self._root] = self.chunks.held
        await keep_settled(partial(self._settle, announcer), self.lending, seen)

    async def _settle(self, announcer: Announcer) -> None:
        await self._follow(announcer)
        tree, store, chunks = self._model.mirror.tree, self._model.mirror.store, self.chunks
        request = AssignChunks(announcer.generation, self._root, min(self._capacity, tree.chunk_count))
        answer = await self._session.tracker.ask(request, Assigned, self._assigned.encode())
        self._assigned = wanted = IndexSet.decode(answer.payload, tree.chunk_count)
        chunks.ready = chunks.ready & wanted
        self.lending.now(state=self._state, assigned=len(wanted), ready=len(chunks.ready), problem="")
        lent = [tree.chunk(index) for index in wanted]
        await find_room(self._model.mirror, _WHAT, chunks=lent, remedy=_REMEDY)
        pins = {chunk.address for chunk in lent}
        await trio.to_thread.run_sync(store.pin, _pin(self._root), pins)
        announcer.changed()
        await fetch_into(chunks, wanted, self._model.mirror, self.lending, announcer)
        self.lending.now(state=self._state)

    async def _follow(self, announcer: Announcer) -> None:
        """Goes on with a later version of the model, when there is one."""
        later = await self._session.later(self._model)
        if later is None:
            return
        before, self._model = self._model.signed.manifest, later
        self._root = root = later.signed.manifest.root
        old, self.chunks = self.chunks, StoredChunks(later.mirror.tree, later.mirror.store)
        if later.signed.manifest.content == before.content:
            self.chunks.ready = old.ready  # signed anew; whoever still reads it under the old root may
        else:
            old.ready = self._assigned = EMPTY  # its bytes make room for the new ones
        self.chunks.paused = old.paused
        self._maintainer.models[root] = self.chunks
        announcer.held[root] = self.chunks.held
        await trio.to_thread.run_sync(later.mirror.store.unpin, _pin(before.root))

    @property
    def _state(self) -> str:
        if self.chunks.paused:
            return "paused"
        return "running" if self.chunks.ready == self._assigned else "fetching"

    def pause(self, announcer: Announcer, paused: bool) -> None:
        """Stops or goes on serving; what is kept stays on disk."""
        self.chunks.paused = paused
        self.lending.now(state=self._state)
        announcer.changed()


async def fetch_into(
    chunks: StoredChunks, wanted: IndexSet, mirror: Mirror, lending: Lending, announcer: Announcer
) -> None:
    """Has all of these in the store and served, a few at a time, telling of each few. OSError when some cannot be
    had; what is ready stays."""
    missing = list(wanted - chunks.ready)
    for start in range(0, len(missing), FETCHED_AT_ONCE):
        part = missing[start : start + FETCHED_AT_ONCE]
        await mirror.ensure(mirror.tree.chunk(index) for index in part)
        chunks.ready = chunks.ready | IndexSet.of(part)
        lending.now(ready=len(chunks.ready))
        announcer.changed()


def _pin(root: bytes) -> str:
    return f"lent-{root.hex()[:32]}"
