"""A further maintainer of a whole model: serves what somebody else signed, and every later version of it.

The bytes are those of the store, fetched through the mirror, verified and pinned there; or those of a directory
that is a copy of the model, whose files are hashed and must be what the operator signed. Neither needs the
operator's key. What was fetched is found again after a restart, and stays when whoever served it first is gone; what is
lost of it is fetched again.
"""

from functools import partial
from pathlib import Path

import trio

from engine.source import DirectorySource
from swarm.errors import SwarmError
from swarm.peers.announce import Announcer
from swarm.peers.donor import Lending, keep_settled
from swarm.peers.inspect import chat_trouble
from swarm.peers.inventory import hash_signed
from swarm.peers.maintainer import DirectoryChunks, Maintainer, watch
from swarm.peers.models import OpenModel
from swarm.peers.room import find_room
from swarm.peers.session import Session
from swarm.peers.stored import Losses, StoredChunks, fetch_into, files_of
from swarm.trust.manifest import Manifest
from swarm.wire.holdings import IndexSet
from swarm.wire.messages.tracker import HeartbeatSeen

PIN = "whole"
_OTHERWISE = "give its name instead of the directory, and it is fetched"


class WholeModel:
    """See the module. `open` before it is announced, then `run`."""

    def __init__(
        self,
        session: Session,
        model: OpenModel,
        maintainer: Maintainer,
        lending: Lending,
        copy: Path | None = None,
    ) -> None:
        """`copy`: the directory (or GGUF file) that has the model already."""
        self._session = session
        self._model = model
        self._maintainer = maintainer
        self._copy = copy
        self._copied: DirectoryChunks | None = None
        self._chunks: StoredChunks | None = None
        self._content = b""
        """Of the manifest that they are the chunks of."""
        self._looked_at = b""
        self._replaced: list[Manifest] = []
        """Earlier versions that are served until the one after them is here."""
        self._losses = Losses(self._show_losses)
        self.lending = lending

    async def open(self) -> None:
        """Makes sure of the copy, or that there is room for one.

        Raises NotThatModel, NoRoom, LimitTooLow, OSError, the errors of `inventory`.
        """
        if self._copy is not None:
            self._copied = await self._checked(self._copy, self._model.signed.manifest)
        else:
            await find_room(self._model.mirror, self._model.described)

    async def run(self, announcer: Announcer, seen: trio.MemoryReceiveChannel[HeartbeatSeen]) -> None:
        """Serves, and follows the model's later versions, until cancelled."""
        self._losses.announce_with(announcer)
        await keep_settled(partial(self._settle, announcer), self.lending, seen, self._watch)

    async def _watch(self) -> None:
        if self._copied is not None:
            await watch(self._copied)
        await self._losses.wait()

    async def _settle(self, announcer: Announcer) -> None:
        refused: SwarmError | OSError | None = None
        try:
            await self._follow()
        except (SwarmError, OSError) as error:
            refused = error  # the version before is kept whole, whatever is wrong with the later
        root = self._model.signed.manifest.root
        if root not in self._maintainer.models:
            await self._begin(announcer)
        if self._chunks is not None:
            await self._complete(self._chunks, announcer, problem="" if refused is None else str(refused))
        if root != self._looked_at:
            await self._look_at(self._model.signed.manifest)
            self._looked_at = root
        await self._retire(announcer)
        if refused is not None:
            raise refused

    async def _follow(self) -> None:
        """Goes on with a later version of the model, when there is one."""
        later = await self._session.later(self._model)
        if later is None:
            return
        if self._copy is not None:
            self._copied = await self._checked(self._copy, later.signed.manifest)
        self._replaced.append(self._model.signed.manifest)
        self._model = later

    async def _begin(self, announcer: Announcer) -> None:
        """Serves the model from now on, what is here of it. Raises NoRoom, LimitTooLow, OSError."""
        model, manifest, copied = self._model, self._model.signed.manifest, self._copied
        tree, store = model.mirror.tree, model.mirror.store
        if copied is not None:
            self._maintainer.models[manifest.root] = copied
            announcer.held[manifest.root] = copied.held
            self.lending.now(state="running", assigned=tree.chunk_count, ready=len(copied.held()), problem="")
            announcer.changed()
            return
        await find_room(model.mirror, model.described)
        wanted = {tree.chunk(index).address for index in range(tree.chunk_count)}
        await trio.to_thread.run_sync(store.pin, _pin(manifest), wanted)
        if self._chunks is None or self._content != manifest.content:
            self._chunks, self._content = StoredChunks(tree, store, self._losses.note), manifest.content
        self._maintainer.models[manifest.root] = self._chunks
        announcer.held[manifest.root] = self._chunks.held

    async def _complete(self, chunks: StoredChunks, announcer: Announcer, problem: str) -> None:
        """Has all of the model here, again what was lost; tells of a problem that there is besides. Raises OSError."""
        mirror = self._model.mirror
        wanted = IndexSet.full(mirror.tree.chunk_count)
        chunks.compare(await trio.to_thread.run_sync(files_of, mirror.store))
        state = "running" if chunks.ready == wanted else "fetching"
        self.lending.now(state=state, assigned=len(wanted), ready=len(chunks.ready), problem=problem)
        if chunks.ready != wanted:
            await fetch_into(chunks, wanted, mirror, self.lending, announcer)
            self.lending.now(state="running")

    async def _retire(self, announcer: Announcer) -> None:
        """Lets go of earlier versions, now that the one after them is here."""
        now = self._model.signed.manifest
        while self._replaced:
            before = self._replaced.pop()
            if before.content != now.content:
                # Its bytes may be evicted now; who still reads it has other holders.
                self._maintainer.models.pop(before.root, None)
                announcer.held[before.root] = IndexSet
                announcer.changed()
            await trio.to_thread.run_sync(self._model.mirror.store.unpin, _pin(before))

    def _show_losses(self) -> None:
        if self._chunks is not None:
            self.lending.now(state="fetching", ready=len(self._chunks.ready))

    async def _look_at(self, manifest: Manifest) -> None:
        """Tells the owner what chats with this version will trip over. Only its operator can mend it."""
        source, copy = self._model.source, self._copy

        def look() -> tuple[str, ...]:
            if copy is None:
                return chat_trouble(source)
            with DirectorySource(copy, {entry.path for entry in manifest.files}) as copied:
                return chat_trouble(copied)

        self.lending.now(trouble=await trio.to_thread.run_sync(look))

    def _lost(self, path: str) -> None:
        """A file of the copy changed: it is served no more, and the owner is told."""
        ready = len(self._copied.held()) if self._copied else 0
        self.lending.now(ready=ready, problem=f"{path} changed and is not served any more")
        self._losses.announce()

    async def _checked(self, directory: Path, manifest: Manifest) -> DirectoryChunks:
        """The directory's chunks, once they are known to be those of the manifest."""
        hashing = partial(hash_signed, directory, manifest, self._session.home.hashes, otherwise=_OTHERWISE)
        files = await trio.to_thread.run_sync(hashing)
        return DirectoryChunks(directory, files, lambda path: trio.from_thread.run_sync(self._lost, path))


def _pin(manifest: Manifest) -> str:
    return f"{PIN}-{manifest.root.hex()[:32]}"
