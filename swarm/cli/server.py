"""A running `swarm serve`: puts hashing, signing, tracker, maintainer and announcing together, in this order.

1. The port is taken, so that a taken one is found before the long work.
2. The directory is hashed, or its kept hashes are used; the manifest is signed, or the last one used again.
3. Tracker and maintainer answer on the port.
4. The maintainer registers like any other peer would, at its own tracker or the one it was told, and publishes
   the manifest.
5. The invite is printed; from then on files are watched, and the manifest is signed again in time.
"""

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from engine.errors import EngineError
from engine.expert_bank import ExpertBank
from engine.numerics import Weights
from swarm.cli.hosting import Place, invite_address, listening, open_store, until_signalled
from swarm.cli.lan import tell_lan
from swarm.cli.output import byte_progress
from swarm.cli.reports import Facts, ServeReport, say_trouble
from swarm.errors import SwarmError
from swarm.peers.announce import Announcer, Reach
from swarm.peers.banks import UnchangedDirectory, layout_of, open_experts, warm
from swarm.peers.doors import Doors
from swarm.peers.executor import Executor, profile_of, whole_bank
from swarm.peers.inspect import ModelFacts
from swarm.peers.inventory import HashedFile, HashProgress, hash_files, hash_signed, list_files
from swarm.peers.links import Links
from swarm.peers.maintainer import DirectoryChunks, Maintainer, watch
from swarm.peers.membership import keep_line
from swarm.peers.metrics import (
    Samples,
    executor_samples,
    exposed,
    maintainer_samples,
    standing_samples,
    tracker_samples,
)
from swarm.peers.operator import LIFETIME_S, Publication, publish
from swarm.peers.settings import Home
from swarm.peers.target import Target
from swarm.peers.tracking import TrackerClient
from swarm.peers.verdict import ExecutorVerifier
from swarm.peers.websources import useless_sources
from swarm.trust.identity import Identity
from swarm.trust.invite import Invite
from swarm.trust.keyring import Keyring
from swarm.trust.sources import WebSource
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import PeerKey
from swarm.wire.messages import Message
from swarm.wire.rpc import Handler
from swarm.wire.server import Server
from tracker.server import Options, open_tracker

RENEWAL_CHECK_S = 3600.0
LIMITS = rpc.Limits(bytes_in_flight=16 << 20)
"""Payloads take about three times this while they are read, ciphered and sent; with all that a server holds
beside them it stays under 256 MiB, however many peers ask."""


@dataclass(frozen=True)
class Plan:
    """What is to be served, where, and in whose name."""

    directory: Path
    name: str
    place: Place
    paths: Home
    facts: ModelFacts
    identity: Identity
    operator: Identity | None
    """None: the model was signed elsewhere."""
    secret: bytes | None
    keyring: Keyring | None = None
    signed: Publication | None = None
    """What was signed elsewhere."""
    least_version: int = 1
    sources: tuple[WebSource, ...] = ()
    """Where on the web its files lie too."""
    guests: frozenset[bytes] = frozenset()
    """Other operators whose models the tracker here takes."""
    execute: bool = True
    """Whether to run experts for others, too."""
    weights: Weights = "auto"
    expert_ram_bytes: int | None = None
    lan: bool = True
    """Whether to tell the local network."""
    metrics: Address | None = None
    """Where Prometheus may ask."""
    join: Target | None = None
    """The swarm of another tracker to serve in; None: this machine is a tracker itself."""


async def serve(plan: Plan, as_json: bool) -> bool:
    """Serves until a signal comes; whether it had begun to. Raises SwarmError or OSError when it cannot."""
    began = False
    async with until_signalled() as ended, trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_at, ended, nursery.cancel_scope)
        async with listening(plan.place) as listeners:
            say_trouble(plan.facts.trouble, as_json)
            files = await _hash(plan)
            server = _Server(plan, files, _publish(plan, files), as_json)
            async with _tracking(plan, server) as (handlers, samples):
                handlers |= server.handlers()
                answering = partial(rpc.serve, psk=plan.secret, on_peer=server.report.peer, limits=LIMITS)
                with exposed(plan.metrics, *samples, *server.samples()) as metrics:
                    addresses = await nursery.start(answering, listeners, plan.identity, handlers)
                    began = True
                    server.report.exposing(metrics)
                    await server.run(nursery, addresses)
    return began


@asynccontextmanager
async def _tracking(
    plan: Plan, server: "_Server"
) -> AsyncIterator[tuple[dict[type[Message], Handler], list[Samples]]]:
    """What a tracker on the same port answers and tells; nothing when the tracker is elsewhere."""
    if plan.join is not None:
        yield {}, []
        return
    with closing(open_store(plan.paths, plan.place.port)) as store:
        verifier = ExecutorVerifier(lambda: server.executor)
        operators = plan.guests | {server.publication.signed.keyring.latest}
        async with open_tracker(
            plan.identity, store, psk=plan.secret, options=Options(operators=operators), verifier=verifier
        ) as tracker:
            yield dict(tracker.handlers()), [tracker_samples(tracker)]


class _Server:
    """The parts that live as long as the server does."""

    def __init__(
        self, plan: Plan, files: tuple[HashedFile, ...], publication: Publication, as_json: bool
    ) -> None:
        self.plan = plan
        self.files = files
        self.publication = publication
        self.chunks = DirectoryChunks(plan.directory, files, self._withdrawn)
        self.maintainer = Maintainer({publication.root: self.chunks})
        self.executor = Executor(plan.identity) if plan.execute and any(plan.facts.experts_in_layer) else None
        self.report = ServeReport(self.maintainer, as_json)
        self._ended = threading.Event()
        self.announcer: Announcer | None = None

    def handlers(self) -> dict[type[Message], Handler]:
        """What it answers beside a tracker's."""
        executed = {} if self.executor is None else self.executor.handlers()
        return {**self.maintainer.handlers(), **executed}

    def samples(self) -> list[Samples]:
        """What Prometheus may know."""
        found = [maintainer_samples(self.maintainer), standing_samples(lambda: self.announcer)]
        return found if self.executor is None else [*found, executor_samples(self.executor)]

    async def run(self, nursery: trio.Nursery, addresses: list[Address]) -> None:
        """Announces the model, prints the invite, and keeps at it."""
        plan, port = self.plan, addresses[0].port
        place = plan.place
        links = Links(nursery, plan.identity, plan.secret)
        if plan.join is None:
            tracker = TrackerClient(links, _own(addresses), plan.identity.key)
        else:
            tracker = TrackerClient(links, plan.join.address, plan.join.tracker)
            await tracker.connect()
        reach = Reach(port, (place.advertise,) if place.advertise else (), place.is_local)
        held = {self.publication.root: self.chunks.held}
        self.announcer = Announcer(
            tracker, reach, [self.publication], held, self.executor, on_change=self.report.standing
        )
        await nursery.start(self.announcer.run)
        if plan.join is not None:
            doors = Doors(nursery, plan.identity, tracker, plan.secret, links)
            server = Server(plan.identity, self.handlers(), psk=plan.secret, limits=LIMITS)
            nursery.start_soon(keep_line, doors, self.announcer, server)
        assert tracker.key is not None
        address = invite_address(place, port) if plan.join is None else plan.join.address
        invite = Invite(address, self.publication.signed.signer, PeerKey(tracker.key), plan.secret)
        self.report.serving(
            Facts(self.publication.signed, plan.facts, address, str(invite), plan.identity.key)
        )
        nursery.start_soon(watch, self.chunks)
        nursery.start_soon(self._check_sources)
        nursery.start_soon(self._renew)
        if plan.lan and plan.join is None and not place.is_local:
            nursery.start_soon(tell_lan, plan.name, address)
        if self.executor is not None:
            nursery.start_soon(self._execute_if_possible, self.executor)
        try:
            await self.report.run()
        finally:
            self._ended.set()

    async def _check_sources(self) -> None:
        """Says which web sources do not give what was signed: nobody else would tell the operator."""
        manifest = self.publication.signed.manifest
        for address, reason in await useless_sources(manifest) if manifest.sources else ():
            self.report.useless_source(address, reason)

    async def _execute_if_possible(self, executor: Executor) -> None:
        """Runs experts; when they cannot be read (a file changed, a disk fails), serves bytes only and says so."""
        try:
            await self._execute(executor)
        except (EngineError, SwarmError, OSError) as error:
            executor.banks.clear()
            self.report.not_executing(error)
            if self.announcer is not None:
                self.announcer.changed()

    async def _execute(self, executor: Executor) -> None:
        """Opens the experts, offers to run them, then reads as many as fit into memory."""
        plan = self.plan
        source = UnchangedDirectory(plan.directory, self.files)

        def start() -> ExpertBank:
            bank = open_experts(source, plan.weights, plan.expert_ram_bytes)
            warm(bank, list(bank.layout.all()))
            return bank

        bank = await executor.thread.run(start)
        executor.add(whole_bank(profile_of(self.publication.root, plan.weights), bank, layout_of(bank)))
        assert self.announcer is not None
        self.announcer.changed()
        self.report.executing(bank.capacity_bytes, bank.total_bytes)
        preload = partial(bank.preload, cancelled=self._ended.is_set)
        await trio.to_thread.run_sync(preload, abandon_on_cancel=True)
        self.announcer.changed()

    def _withdrawn(self, path: str) -> None:
        """A file changed: says so, and has the tracker told. Runs in the thread that noticed."""
        trio.from_thread.run_sync(self.report.withdrawn, path)
        if self.executor is not None:
            self.executor.banks.clear()
        if self.announcer is not None:
            trio.from_thread.run_sync(self.announcer.changed)

    async def _renew(self) -> None:
        """Signs the same files again when the manifest has half of its time left."""
        assert self.announcer is not None
        while True:
            await trio.sleep(RENEWAL_CHECK_S)
            if (
                self.publication.signed.manifest.expires - time.time() > LIFETIME_S // 2
                or self.chunks.withdrawn
                or self.plan.signed is not None
            ):
                continue
            self.publication = _publish(self.plan, self.files)
            self.maintainer.models[self.publication.root] = self.chunks
            self.announcer.publications.append(self.publication)
            self.announcer.held[self.publication.root] = self.chunks.held
            if self.executor is not None and self.executor.banks:
                bank = next(iter(self.executor.banks.values()))
                profile = profile_of(self.publication.root, self.plan.weights)
                self.executor.add(whole_bank(profile, bank.experts, bank.layout))
            self.announcer.changed()
            self.report.renewed(self.publication.signed.manifest.version)


def _publish(plan: Plan, files: tuple[HashedFile, ...]) -> Publication:
    if plan.signed is not None:
        return plan.signed
    assert plan.operator is not None
    return publish(
        plan.name,
        files,
        plan.facts.experts_in_layer,
        plan.operator,
        plan.paths.served,
        now_s=int(time.time()),
        least_version=plan.least_version,
        keyring=plan.keyring,
        sources=plan.sources,
    )


async def _hash(plan: Plan) -> tuple[HashedFile, ...]:
    """Hashes the directory in threads, with a bar; stops soon when cancelled."""
    stop = threading.Event()

    def work() -> tuple[HashedFile, ...]:
        with byte_progress(f"Hashing {plan.name}") as show:

            def progress(step: HashProgress) -> None:
                if stop.is_set():
                    raise _Stopped
                show(step.done_bytes, step.total_bytes, step.path)

            directory, kept = plan.directory, plan.paths.hashes
            if plan.signed is None:
                return hash_files(directory, list_files(directory), kept, progress=progress)
            signed = plan.signed.signed.manifest
            return hash_signed(directory, signed, kept, otherwise="sign what is there now", progress=progress)

    try:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
    finally:
        stop.set()


class _Stopped(Exception):
    """Nobody waits for these hashes any more."""


async def _cancel_at(ended: trio.Event, scope: trio.CancelScope) -> None:
    await ended.wait()
    scope.cancel()


def _own(addresses: list[Address]) -> Address:
    """Where this process reaches itself."""
    first = addresses[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first.host, first.host)
    return Address(host, first.port)
