"""A disk donor: keeps a part of a model's chunks for others, the part that fewest hold.

Chunks come through the mirror, each verified, are pinned in the store so that nothing else evicts them while the donor
runs, and are announced as they arrive. What it is to hold no more it removes before it fetches anything, so that its
disk never grows past its size; what is lost it fetches again; what it brought in an earlier run it goes on with.
"""

from functools import partial
from itertools import islice

import trio

from mirror.tree import Tree
from swarm.peers.announce import Announcer
from swarm.peers.donor import Lending, keep_settled
from swarm.peers.lent import Lent, chunks_within
from swarm.peers.maintainer import Maintainer
from swarm.peers.models import OpenModel
from swarm.peers.room import find_room
from swarm.peers.session import Session
from swarm.peers.stored import Losses, StoredChunks, fetch_into, files_of
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.messages.tracker import AssignChunks, Assigned, HeartbeatSeen

PIN = "lent"
_WHAT, _REMEDY = "What is lent", "or lend less, with a smaller --size"


class DiskDonor:
    """See the module."""

    def __init__(
        self, session: Session, model: OpenModel, size_bytes: int, maintainer: Maintainer, lending: Lending
    ) -> None:
        self._session = session
        self._model = model
        self._size_bytes = size_bytes
        self._capacity = chunks_within(size_bytes)
        self._assigned = EMPTY
        self._losses = Losses(self._show_losses)
        self._lent: Lent
        self.lending = lending
        self.chunks = self._stored(model)
        self._root = model.signed.manifest.root
        self._maintainer = maintainer
        maintainer.models[self._root] = self.chunks

    async def open(self) -> None:
        """Goes on with what was lent before, and makes sure that there is room for the rest. Raises NoRoom,
        LimitTooLow, OSError."""
        await trio.to_thread.run_sync(self._resume)
        await find_room(self._model.mirror, _WHAT, most_bytes=self._size_bytes, remedy=_REMEDY)

    def _resume(self) -> None:
        tree, store = self._model.mirror.tree, self._model.mirror.store
        self._lent, files = Lent(self._session.home.lent, store), files_of(store)
        self._lent.keep({tree.chunk(index).address for index in range(tree.chunk_count)}, files)
        self._assigned = self._brought(tree)

    async def run(self, announcer: Announcer, seen: trio.MemoryReceiveChannel[HeartbeatSeen]) -> None:
        """Keeps what the tracker assigns, until cancelled."""
        self._losses.announce_with(announcer)
        announcer.held[self._root] = self.chunks.held
        await keep_settled(partial(self._settle, announcer), self.lending, seen, self._losses.wait)

    async def _settle(self, announcer: Announcer) -> None:
        await self._follow(announcer)
        tree = self._model.mirror.tree
        capacity = min(self._capacity, tree.chunk_count)
        request = AssignChunks(announcer.generation, self._root, capacity)
        answer = await self._session.tracker.ask(request, Assigned, self._assigned.encode())
        told = IndexSet.decode(answer.payload, tree.chunk_count)
        self._assigned = wanted = IndexSet.of(islice(told, capacity))
        self.chunks.keep(wanted)
        announcer.changed()
        await trio.to_thread.run_sync(self._make_room)
        self.lending.now(state=self._state, assigned=len(wanted), ready=len(self.chunks.ready), problem="")
        lent = [tree.chunk(index) for index in wanted]
        await find_room(self._model.mirror, _WHAT, chunks=lent, remedy=_REMEDY)
        await fetch_into(self.chunks, wanted, self._model.mirror, self.lending, announcer)
        self.lending.now(state=self._state)

    def _make_room(self) -> None:
        """Removes what was lent and is not to be any more, and finds out what of the rest is lost. Blocks."""
        tree, store = self._model.mirror.tree, self._model.mirror.store
        wanted = {tree.chunk(index).address for index in self._assigned}
        store.pin(PIN, wanted)
        files = files_of(store)
        self.chunks.compare(files)
        self._lent.keep(wanted, files)
        self._lent.expect(wanted, files)

    async def _follow(self, announcer: Announcer) -> None:
        """Goes on with a later version of the model, when there is one."""
        later = await self._session.later(self._model)
        if later is None:
            return
        before, self._model = self._model.signed.manifest, later
        self._root = root = later.signed.manifest.root
        if later.signed.manifest.content != before.content:
            old, self.chunks = self.chunks, self._stored(later)
            self.chunks.paused = old.paused
            old.keep(EMPTY)  # its bytes make room for the new ones
            self._assigned = await trio.to_thread.run_sync(self._brought, later.mirror.tree)
        # Else it was signed anew; whoever still reads it under the old root may.
        self._maintainer.models[root] = self.chunks
        announcer.held[root] = self.chunks.held

    def _brought(self, tree: Tree) -> IndexSet:
        """The chunks of a model that were brought here and are here. Blocks."""
        here = self._lent.here(files_of(self._model.mirror.store))
        return IndexSet.of(index for index in range(tree.chunk_count) if tree.chunk(index).address in here)

    def _stored(self, model: OpenModel) -> StoredChunks:
        return StoredChunks(model.mirror.tree, model.mirror.store, self._losses.note)

    def _show_losses(self) -> None:
        self.lending.now(state=self._state, ready=len(self.chunks.ready))

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
