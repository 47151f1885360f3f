"""A joined swarm: one tracker, the models it knows, and those that are open here.

    async with join(parse_target(invite), home()) as session:
        model = await session.open_model("olmoe")      # its `source` is for the engine's thread

What a tracker says is checked against what this machine remembers: the tracker's key, the operator's keyring
and the highest version seen of each model. A change of key, a rollback or an expired manifest is refused by
name. When the tracker does not answer, the session is offline: what was accepted before stays usable, says
how old it is, and reads what is on this machine; once the swarm answers again, what is missing is fetched.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from engine.expert_bank import ExpertBank
from engine.kernels import expect_pauses
from mirror.cas import Store
from mirror.fetch import Mirror, Progress, open_mirror
from mirror.plan import Ledger
from mirror.tree import Tree
from swarm.errors import SwarmError
from swarm.peers.banks import layout_of
from swarm.peers.doors import Doors
from swarm.peers.executor import profile_of
from swarm.peers.known import KnownTrackers
from swarm.peers.links import Links, NotTriedAgain
from swarm.peers.models import (
    ModelInfo,
    NoModels,
    NoSuchModel,
    NothingKeptHere,
    OpenModel,
    PeerView,
    SeveralModels,
    SignedSource,
    Snapshot,
    Speed,
    WebView,
    WrongManifest,
    age_notice,
    kept_info,
    listed,
)
from swarm.peers.pool import keep_pool
from swarm.peers.remote import RemoteExperts, Rules
from swarm.peers.replicas import SwarmReplicas
from swarm.peers.reports import Reports
from swarm.peers.settings import Home, load_remembered, remember
from swarm.peers.target import Target
from swarm.peers.tracking import TrackerClient, TrackerSilent
from swarm.peers.websources import with_web
from swarm.trust.identity import Identity
from swarm.trust.manifest import parse_signed
from swarm.trust.memory import Memory, Remembered
from swarm.trust.sources import WebSource, parse_source
from swarm.wire.race import plain_errors
from swarm.wire.rpc import ConnectionLost, Unreachable

if TYPE_CHECKING:
    from mirror.http import WebReplica

FINISH_S = 10.0
LOOK_EVERY_S = 60.0
STALLED_S = 2.0  # without a further byte, what was to be kept is given up
_AWAY = (Unreachable, ConnectionLost, TrackerSilent, NotTriedAgain)
"""How a tracker looks that is not there; anything else it does is refused instead of worked around."""


class Session:
    """Made by `join`. Its methods are called in the trio thread; `snapshot` from any."""

    def __init__(
        self,
        target: Target,
        tracker: TrackerClient,
        doors: Doors,
        bulk: Doors,
        home: Home,
        store: Store,
        nursery: trio.Nursery,
        web: bool,
    ) -> None:
        """`bulk`: doors of their own for bytes, so that they do not hold up expert calls."""
        self.tracker = tracker
        self.doors = doors
        self.home = home
        self.operator = target.operator
        """Whose signature the invite names; None: none was named."""
        self.online = False
        self.problem = "it was not asked"
        """Why the session is offline."""
        self._bulk = bulk
        self._memory = Memory(home.manifests)
        self._known = KnownTrackers(home.known_trackers)
        self._store = store
        self._nursery = nursery
        self._web = web
        self._ledger = Ledger()
        self._open: dict[bytes, OpenModel] = {}
        self.current: OpenModel | None = None
        """The model that `snapshot` tells of: the one opened last, unless whoever opens models says another."""
        self._speed = Speed()
        self._alone = False
        self._reports = Reports(tracker, home.proofs, nursery)

    async def connect(self) -> None:
        """Reaches the tracker, or goes offline when it is not there; nothing in a session that stays offline.

        Raises:
            NothingKeptHere: it is not there, and there is nothing to go on with.
            SwarmError: it is not the tracker it should be, or the token is wrong.
        """
        if self._alone:
            return
        try:
            key = await self.tracker.connect()
        except _AWAY as error:
            self._went_offline(error)
            if not await self._kept():
                raise NothingKeptHere(address=self.tracker.address, reason=error) from error
            return
        await trio.to_thread.run_sync(self._known.remember, self.tracker.address, key)
        self.online, self.problem = True, ""

    async def stay_offline(self) -> None:
        """Uses what is on this machine and nothing else. Raises NothingKeptHere."""
        self._alone = True
        self.problem = "as you asked for"
        if not await self._kept():
            raise NothingKeptHere(address=self.tracker.address, reason="The network was not used.")

    async def models(self) -> tuple[ModelInfo, ...]:
        """All models of the swarm by name; when offline, those that were accepted here."""
        kept = await self._kept()
        if self.online:
            try:
                summaries = await self.tracker.models()
            except _AWAY as error:
                self._went_offline(error)
            else:
                return tuple(listed(summary, kept.get(summary.name)) for summary in summaries)
        return tuple(kept_info(kept[name]) for name in sorted(kept))

    async def open_model(self, name: str | None = None) -> OpenModel:
        """Opens a model; the only one, when no name is given. It stays open for as long as the session.

        Raises:
            NoModels, NoSuchModel, SeveralModels: there is no such model, or no only one.
            SwarmError: its manifest was refused, saying why.
        """
        try:
            info = self._choose(await self.models(), name)
            accepted = await self._manifest(info)
        except _AWAY as error:
            self._went_offline(error)
            info = self._choose(await self.models(), name)
            accepted = await self._manifest(info)
        found = self._open.get(accepted.manifest.root)
        if found is None:
            found = self._open[accepted.manifest.root] = await self._opened(info, accepted)
        self.current = found
        return found

    async def later(self, model: OpenModel) -> OpenModel | None:
        """The model as the swarm has it now, opened, when that is another version; None when it is not, or the
        tracker is away. Raises a SwarmError when the other version is refused."""
        if not self.online:
            await self.connect()
        for info in await self.models() if self.online else ():
            if info.name == model.info.name and info.root != model.signed.manifest.root:
                found = await self.open_model(info.name)
                return None if found.signed.manifest.root == model.signed.manifest.root else found
        return None

    async def experts(self, model: OpenModel, bank: ExpertBank, rules: Rules) -> RemoteExperts:
        """A model's experts, run by the donors of the swarm; by `bank`, here, where nobody else can.

        Donors that join later or come back are used as soon as the tracker names them, until `part_with`.
        """
        profile = profile_of(model.signed.manifest.root, bank.weights)
        # A tracker that was silent just now is not waited for again.
        first_asked = "before" if self.online else "never" if self._alone else "after"
        pool = await self._nursery.start(
            keep_pool, self.tracker, self.doors, profile, layout_of(bank), first_asked
        )
        return RemoteExperts(pool, bank, rules, self._reports.add)

    async def part_with(self, experts: RemoteExperts) -> None:
        """A model is used no more: its audits are made, not for ever, and its donors left.

        Connections to them stay until the session ends, for other models.
        """
        with trio.move_on_after(FINISH_S):
            await experts.auditor.finish()
        experts.pool.leave()

    async def finish(self, experts: RemoteExperts) -> None:
        """Makes the audits that are pending, tells the tracker of what they find, and fetches what was to be kept;
        not for ever."""
        with trio.move_on_after(FINISH_S):
            await experts.auditor.finish()
            await self._reports.finish()
            if experts.rules.fetch and self.current is not None:
                await _settled(self.current.mirror)

    def snapshot(self) -> Snapshot:
        """The session as it is now. Never waits; may be called from any thread."""
        current = self.current
        progress = current.mirror.progress if current else Progress(0, 0, 0)
        return Snapshot(
            online=self.online,
            problem=self.problem,
            tracker=str(self.tracker.address),
            operator=current.signed.keyring.latest if current else self.operator,
            model=current.info.name if current else "",
            progress=progress,
            bytes_per_s=self._speed.update(progress.fetched_bytes),
            peers=tuple(PeerView.of(replica) for replica in current.replicas.known) if current else (),
            accusations=tuple(current.replicas.accusations) if current else (),
            web=tuple(WebView.of(replica) for replica in current.web) if current else (),
        )

    def _choose(self, models: tuple[ModelInfo, ...], name: str | None) -> ModelInfo:
        known = ", ".join(model.name for model in models)
        address = self.tracker.address
        if not models:
            raise NoModels(address=address)
        if name is None and len(models) > 1:
            served = tuple(model for model in models if model.holders)  # others are only remembered
            models = served if len(served) == 1 else models
        if name is None and len(models) > 1:
            raise SeveralModels(address=address, known=known)
        for model in models:
            if name in (None, model.name):
                return model
        raise NoSuchModel(address=address, name=name, known=known)

    async def _manifest(self, info: ModelInfo) -> Remembered:
        """The manifest of a model, accepted now or, offline, before."""
        kept = (await self._kept()).get(info.name)
        if not self.online:
            assert kept is not None
            return kept
        # The root does not say who signed: the same manifest under another key is a change of key.
        if kept is not None and (kept.manifest.root, kept.signed.keyring.latest) == (
            info.root,
            info.operator,
        ):
            signed = kept.signed
        else:
            content = (await self.tracker.manifest(info.root)).content
            signed = await trio.to_thread.run_sync(parse_signed, content)
        manifest = signed.manifest
        if (manifest.root, manifest.name) != (info.root, info.name):
            raise WrongManifest(
                address=self.tracker.address, name=info.name, expected=info.root, found=manifest.root
            )
        # Also when it was accepted before: it may have expired since.
        accept = partial(self._memory.accept, now=time.time(), operator=self.operator)
        return await trio.to_thread.run_sync(accept, self._scope, signed)

    async def _opened(self, info: ModelInfo, accepted: Remembered) -> OpenModel:
        signed = accepted.signed
        tree = Tree.of(signed.manifest)
        replicas = SwarmReplicas(
            self.tracker, self._bulk.links, signed.manifest.root, tree.chunk_count, self._bulk
        )
        notices = []
        if self.online:
            try:
                await replicas.refresh()
            except _AWAY as error:
                self._went_offline(error)
        if not self.online:
            notices.append(age_notice(accepted, self.problem))
        if self._store.read_only:
            notices.append(f"{self._store.root} can only be read: what is missing there cannot be fetched.")
        sources = [parse_source(source) for source in signed.manifest.sources if self._web]
        mirror, web = await self._nursery.start(self._keep_open, tree, replicas, sources)
        source = SignedSource(mirror, signed.manifest)
        return OpenModel(info, signed, mirror, source, replicas, tuple(notices), web)

    async def _keep_open(
        self,
        tree: Tree,
        replicas: SwarmReplicas,
        sources: Sequence[WebSource],
        task_status: trio.TaskStatus[tuple[Mirror, tuple[WebReplica, ...]]],
    ) -> None:
        async with with_web(replicas, sources) as (everybody, web):
            reached = None if self._alone else everybody
            async with open_mirror(tree, self._store, reached, ledger=self._ledger) as mirror:
                task_status.started((mirror, web))
                await self._look_around(replicas)

    async def _look_around(self, replicas: SwarmReplicas) -> None:
        """Learns now and then who came to serve an open model; for ever."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self.online:
                # What is wrong is told when a byte is missing; else there is the next time.
                with suppress(SwarmError):
                    await replicas.look()

    async def _kept(self) -> dict[str, Remembered]:
        """What was accepted of this swarm, by name."""
        if self.tracker.key is None:
            return {}
        found = await trio.to_thread.run_sync(self._memory.everything, self._scope)
        return {remembered.manifest.name: remembered for remembered in found}

    @property
    def _scope(self) -> str:
        """Within which a name means a model: the tracker's key, wherever it is reached."""
        assert self.tracker.key is not None
        return self.tracker.key.hex()

    def _went_offline(self, error: Exception) -> None:
        self.online, self.problem = False, str(error)


@asynccontextmanager
async def join(
    target: Target, home: Home, offline: bool = False, identity: Identity | None = None
) -> AsyncIterator[Session]:
    """Joins a swarm for the length of a block; leaves the network alone when `offline`.

    A swarm that was reached is remembered as the one used last.

    identity: who to be in it; None: this machine's own.

    Raises:
        NothingKeptHere: the swarm cannot be reached, and nothing of it was used on this machine before.
        SwarmError, OSError: it refuses, is not what it should be, or our own files cannot be used.
    """
    if not offline:
        expect_pauses()
    if identity is None:
        identity = await trio.to_thread.run_sync(Identity.load_or_create, home.identity_key)
    known = await trio.to_thread.run_sync(KnownTrackers(home.known_trackers).key, target.address)
    remembered = await trio.to_thread.run_sync(load_remembered, home.settings)
    store = await trio.to_thread.run_sync(partial(Store, limit_bytes=remembered.cache_bytes), home.chunks)
    try:
        async with plain_errors() as nursery:
            links = Links(nursery, identity, target.token)
            tracker = TrackerClient(links, target.address, target.tracker or known)
            doors = Doors(nursery, identity, tracker, target.token)
            bulk = Doors(nursery, identity, tracker, target.token, links)
            session = Session(target, tracker, doors, bulk, home, store, nursery, remembered.uses_web)
            if offline:
                await session.stay_offline()
            else:
                await session.connect()
                if session.online:
                    with suppress(OSError):  # a full disk: it is only for the next time
                        await trio.to_thread.run_sync(partial(remember, home.settings, swarm=str(target)))
            yield session
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(store.close)


async def _settled(mirror: Mirror) -> None:
    """Returns when all that is asked for ahead is here, or nothing more comes."""
    verified, since_s = -1, trio.current_time()
    while (now := mirror.progress).verified_bytes < now.wanted_bytes:
        if now.verified_bytes > verified:
            verified, since_s = now.verified_bytes, trio.current_time()
        elif trio.current_time() - since_s > STALLED_S:
            return
        await trio.sleep(0.02)
