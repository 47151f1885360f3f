"""A further maintainer of a whole model: serves what somebody else signed, and every later version of it.

The bytes are those of the store, fetched through the mirror, verified and pinned there; or those of a directory
that is a copy of the model, whose files are hashed and must be what the operator signed. Neither needs the
operator's key. What was fetched is found again after a restart, and stays when whoever served it first is gone.
"""

from functools import partial
from pathlib import Path

import trio

from engine.source import DirectorySource
from swarm.peers.announce import Announcer
from swarm.peers.disk import StoredChunks, fetch_into
from swarm.peers.donor import Lending, keep_settled
from swarm.peers.inspect import chat_trouble
from swarm.peers.inventory import hash_signed
from swarm.peers.maintainer import DirectoryChunks, Maintainer, watch
from swarm.peers.models import OpenModel
from swarm.peers.room import find_room
from swarm.peers.session import Session
from swarm.trust.manifest import Manifest
from swarm.wire.holdings import IndexSet
from swarm.wire.messages.tracker import HeartbeatSeen

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
        self._announcer: Announcer | None = None
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
        self._announcer = announcer
        await keep_settled(partial(self._settle, announcer), self.lending, seen, self._watch)

    async def _watch(self) -> None:
        if self._copied is not None:
            await watch(self._copied)

    async def _settle(self, announcer: Announcer) -> None:
        manifest = self._model.signed.manifest
        if manifest.root not in self._maintainer.models:
            await self._serve(announcer, self._copied)
        later = await self._session.later(self._model)
        if later is None:
            return
        copied = None
        if self._copy is not None:
            copied = await self._checked(self._copy, later.signed.manifest)
        before, self._model, self._copied = self._model.signed.manifest, later, copied
        await self._serve(announcer, copied)
        if later.signed.manifest.content != before.content:
            # Its bytes may be evicted now; who still reads it has other holders.
            del self._maintainer.models[before.root]
            announcer.held[before.root] = IndexSet
            announcer.changed()
        await trio.to_thread.run_sync(later.mirror.store.unpin, _pin(before))

    async def _serve(self, announcer: Announcer, copied: DirectoryChunks | None) -> None:
        model, manifest = self._model, self._model.signed.manifest
        tree, store = model.mirror.tree, model.mirror.store
        if copied is not None:
            self._maintainer.models[manifest.root] = copied
            announcer.held[manifest.root] = copied.held
            self.lending.now(state="running", assigned=tree.chunk_count, ready=len(copied.held()), problem="")
            announcer.changed()
            await self._look_at(manifest)
            return
        chunks = StoredChunks(tree, store)
        await find_room(model.mirror, model.described)
        wanted = IndexSet.full(tree.chunk_count)
        self.lending.now(state="fetching", assigned=len(wanted), ready=0, problem="")
        await trio.to_thread.run_sync(store.pin, _pin(manifest), {tree.chunk(i).address for i in wanted})
        announcer.held[manifest.root] = chunks.held
        self._maintainer.models[manifest.root] = chunks
        try:
            await fetch_into(chunks, wanted, model.mirror, self.lending, announcer)
        except BaseException:
            del self._maintainer.models[manifest.root]  # so that it is begun again
            raise
        self.lending.now(state="running", problem="")
        await self._look_at(manifest)

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
        if self._announcer is not None:
            self._announcer.changed()

    async def _checked(self, directory: Path, manifest: Manifest) -> DirectoryChunks:
        """The directory's chunks, once they are known to be those of the manifest."""
        hashing = partial(hash_signed, directory, manifest, self._session.home.hashes, otherwise=_OTHERWISE)
        files = await trio.to_thread.run_sync(hashing)
        return DirectoryChunks(directory, files, lambda path: trio.from_thread.run_sync(self._lost, path))


def _pin(manifest: Manifest) -> str:
    return f"whole-{manifest.root.hex()[:32]}"
