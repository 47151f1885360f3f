"""A joined swarm: one tracker, the models it knows, and those that are open here.

    async with join(parse_target(invite), home()) as session:
        model = await session.open_model("olmoe")      # its `source` is for the engine's thread

What a tracker says is checked against what this machine remembers: the tracker's key, the operator's keyring
and the highest version seen of each model. A change of key, a rollback or an expired manifest is refused by
name. When the tracker does not answer, the session is offline: what was accepted before stays usable, says
how old it is, and reads what is on this machine; once the swarm answers again, what is missing is fetched.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mirror.cas import Store
from mirror.fetch import Mirror, Progress, open_mirror
from mirror.plan import Ledger
from mirror.source import MirrorSource
from mirror.tree import Tree
from swarm.peers.links import Links, NotTriedAgain
from swarm.peers.models import (
    ModelInfo,
    NoModels,
    NoSuchModel,
    NothingKeptHere,
    OpenModel,
    OtherOperator,
    PeerView,
    SeveralModels,
    Snapshot,
    Speed,
    WrongManifest,
)
from swarm.peers.replicas import SwarmReplicas
from swarm.peers.settings import Home
from swarm.peers.target import Target
from swarm.peers.tracking import TrackerClient, TrackerSilent
from swarm.trust.identity import Identity
from swarm.trust.manifest import SignedManifest, parse_signed
from swarm.trust.memory import Memory
from swarm.wire.messages.tracker import ModelSummary
from swarm.wire.rpc import ConnectionLost, Unreachable

_AWAY = (Unreachable, ConnectionLost, TrackerSilent, NotTriedAgain)
"""How a tracker looks that is not there; anything else it does is refused instead of worked around."""


class Session:
    """Made by `join`. Its methods are called in the trio thread; `snapshot` from any."""

    def __init__(
        self,
        target: Target,
        tracker: TrackerClient,
        links: Links,
        memory: Memory,
        store: Store,
        nursery: trio.Nursery,
    ) -> None:
        self.tracker = tracker
        self.operator = target.operator
        """Whose signature the invite names; None: none was named."""
        self.online = False
        self.problem = "it was not asked"
        """Why the session is offline."""
        self._links = links
        self._memory = memory
        self._store = store
        self._nursery = nursery
        self._ledger = Ledger()
        self._open: dict[bytes, OpenModel] = {}
        self._current: OpenModel | None = None
        self._speed = Speed()

    async def connect(self) -> None:
        """Reaches the tracker, or goes offline when it is not there.

        Raises:
            NothingKeptHere: it is not there, and there is nothing to go on with.
            SwarmError: it is not the tracker it should be, or the token is wrong.
        """
        try:
            key = await self.tracker.connect()
        except _AWAY as error:
            self._went_offline(error)
            if not self._kept():
                raise NothingKeptHere(address=self.tracker.address, reason=error) from error
            return
        self._memory.remember_tracker(self.tracker.address, key)
        self.online, self.problem = True, ""

    async def models(self) -> tuple[ModelInfo, ...]:
        """All models of the swarm by name; when offline, those that were accepted here."""
        kept = {signed.manifest.name: signed for signed in self._kept()}
        if self.online:
            try:
                listed = await self.tracker.models()
            except _AWAY as error:
                self._went_offline(error)
            else:
                return tuple(_listed(summary, kept.get(summary.name)) for summary in listed)
        return tuple(_kept_info(kept[name]) for name in sorted(kept))

    async def open_model(self, name: str | None = None) -> OpenModel:
        """Opens a model; the only one, when no name is given. It stays open for as long as the session.

        Raises:
            NoModels, NoSuchModel, SeveralModels: there is no such model, or no only one.
            SwarmError: its manifest was refused, saying why.
        """
        info = self._choose(await self.models(), name)
        signed = await self._manifest(info)
        found = self._open.get(signed.manifest.root)
        if found is None:
            found = await self._opened(info, signed)
            self._open[signed.manifest.root] = found
        self._current = found
        return found

    def snapshot(self) -> Snapshot:
        """The session as it is now. Never waits; may be called from any thread."""
        current = self._current
        progress = current.mirror.progress if current else Progress(0, 0, 0)
        replicas = current.replicas.known if current else ()
        now_s = time.monotonic()
        return Snapshot(
            online=self.online,
            problem=self.problem,
            tracker=str(self.tracker.address),
            operator=current.signed.keyring.latest if current else self.operator,
            model=current.info.name if current else "",
            progress=progress,
            bytes_per_s=self._speed.update(progress.fetched_bytes),
            peers=tuple(
                PeerView(
                    key=replica.peer_key,
                    address=str(replica.address),
                    chunks=len(replica.held),
                    given_bytes=replica.given.bytes,
                    in_hand=replica.given.in_hand,
                    wrong=replica.given.wrong,
                    banned=replica.given.banned_until > now_s,
                    trouble=replica.given.trouble,
                )
                for replica in replicas
            ),
            accusations=tuple(current.replicas.accusations) if current else (),
        )

    def _choose(self, models: tuple[ModelInfo, ...], name: str | None) -> ModelInfo:
        known = ", ".join(model.name for model in models)
        address = self.tracker.address
        if not models:
            raise NoModels(address=address)
        if name is None and len(models) > 1:
            raise SeveralModels(address=address, known=known)
        for model in models:
            if name in (None, model.name):
                return model
        raise NoSuchModel(address=address, name=name, known=known)

    async def _manifest(self, info: ModelInfo) -> SignedManifest:
        """The manifest of a model, accepted now or, offline, before."""
        kept = next((signed for signed in self._kept() if signed.manifest.root == info.root), None)
        if not self.online:
            assert kept is not None
            return kept
        signed = kept
        if signed is None:
            content = (await self.tracker.manifest(info.root)).content
            signed = await trio.to_thread.run_sync(parse_signed, content)
        manifest = signed.manifest
        if (manifest.root, manifest.name) != (info.root, info.name):
            raise WrongManifest(
                address=self.tracker.address, name=info.name, expected=info.root, found=manifest.root
            )
        if self.operator is not None and self.operator not in signed.keyring.keys:
            raise OtherOperator(name=info.name, found=signed.keyring.latest, expected=self.operator)
        # Also when it is known already: it may have expired since.
        await trio.to_thread.run_sync(
            self._memory.accept, str(self.tracker.address), signed, int(time.time())
        )
        return signed

    async def _opened(self, info: ModelInfo, signed: SignedManifest) -> OpenModel:
        tree = Tree.of(signed.manifest)
        replicas = SwarmReplicas(self.tracker, self._links, signed.manifest.root, tree.chunk_count)
        notices = []
        if self.online:
            try:
                await replicas.refresh()
            except _AWAY as error:
                self._went_offline(error)
        if not self.online:
            notices.append(_age_notice(signed, self.problem))
        mirror: Mirror = await self._nursery.start(self._keep_open, tree, replicas)
        return OpenModel(info, signed, mirror, MirrorSource(mirror), replicas, tuple(notices))

    async def _keep_open(
        self, tree: Tree, replicas: SwarmReplicas, task_status: trio.TaskStatus[Mirror]
    ) -> None:
        async with open_mirror(tree, self._store, replicas, ledger=self._ledger) as mirror:
            task_status.started(mirror)
            await trio.sleep_forever()

    def _kept(self) -> tuple[SignedManifest, ...]:
        return self._memory.accepted(str(self.tracker.address))

    def _went_offline(self, error: Exception) -> None:
        self.online, self.problem = False, str(error)


@asynccontextmanager
async def join(target: Target, home: Home, offline: bool = False) -> AsyncIterator[Session]:
    """Joins a swarm for the length of a block; leaves the network alone when `offline`.

    Raises:
        NothingKeptHere: the swarm cannot be reached, and nothing of it was used on this machine before.
        SwarmError, OSError: it refuses, is not what it should be, or our own files cannot be used.
    """
    identity = await trio.to_thread.run_sync(Identity.load_or_create, home.identity_key)
    memory = await trio.to_thread.run_sync(Memory, home.trust)
    store = await trio.to_thread.run_sync(Store, home.chunks)
    try:
        async with trio.open_nursery() as nursery:
            links = Links(nursery, identity, target.token)
            key = target.tracker or memory.tracker_key(target.address)
            session = Session(
                target, TrackerClient(links, target.address, key), links, memory, store, nursery
            )
            if not offline:
                await session.connect()
            yield session
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(store.close)


def _listed(summary: ModelSummary, kept: SignedManifest | None) -> ModelInfo:
    same = kept is not None and kept.manifest.root == summary.root
    return ModelInfo(
        name=summary.name,
        version=summary.version,
        root=summary.root,
        operator=summary.operator,
        size_bytes=summary.model_bytes,
        chunks=summary.chunks,
        holders=summary.holders,
        covered_chunks=summary.covered_chunks,
        experts=summary.experts,
        issued_s=kept.manifest.issued if kept is not None and same else None,
    )


def _kept_info(signed: SignedManifest) -> ModelInfo:
    manifest = signed.manifest
    return ModelInfo(
        name=manifest.name,
        version=manifest.version,
        root=manifest.root,
        operator=signed.keyring.latest,
        size_bytes=manifest.total_bytes,
        chunks=sum(len(entry.chunks) for entry in manifest.files),
        issued_s=manifest.issued,
    )


def _age_notice(signed: SignedManifest, problem: str) -> str:
    manifest = signed.manifest
    age_s = max(0, int(time.time()) - manifest.issued)
    days, hours = divmod(age_s // 3600, 24)
    age = f"{days} days" if days > 1 else f"{24 * days + hours} hours" if days or hours > 1 else "moments"
    expired = " It has expired since." if manifest.expires <= time.time() else ""
    return (
        f"Offline ({problem}). Using {manifest.name} version {manifest.version}, signed {age} ago, "
        f"from what is on this machine.{expired}"
    )
