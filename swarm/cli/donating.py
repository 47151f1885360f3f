"""A running `swarm donate`: joins, lends, is paused and resumed by signals, and leaves."""

import fcntl
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import trio

from swarm.cli.hosting import Place, until_signalled
from swarm.cli.output import emit_json, say
from swarm.errors import SwarmError
from swarm.peers.announce import Standing
from swarm.peers.disk import DiskDonor
from swarm.peers.donor import ComputeDonor, Lending, Offer
from swarm.peers.executor import Executor
from swarm.peers.maintainer import Maintainer
from swarm.peers.membership import Listening, Swarming, member
from swarm.peers.metrics import (
    executor_samples,
    exposed,
    lending_samples,
    maintainer_samples,
    standing_samples,
)
from swarm.peers.models import OpenModel
from swarm.peers.session import Session, join
from swarm.peers.settings import home
from swarm.peers.target import Target
from swarm.peers.whole import WholeModel
from swarm.trust.identity import Identity
from swarm.wire.address import Address

NICENESS = 10
SERVED_S = 5.0
"""How often a program that listens is told what was served."""
WHOLE = "models"
"""The kind of donor that `swarm serve --join` is."""
DRAIN_S = 10.0


class AlreadyLending(SwarmError):
    """A donor of {kind} runs on this machine already, as process {process}; end that one first."""


class NothingLent(SwarmError):
    """No donor of {kind} runs on this machine; start one with `swarm donate {kind}`."""


@dataclass(frozen=True)
class Request:
    """Where to lend, and how."""

    target: Target
    model: str | None
    place: Listening
    as_json: bool
    metrics: Address | None = None
    """Where Prometheus may ask."""


def listening_at(listen: str | None, port: int, advertise: str | None, relay: bool) -> Listening:
    """Where a donor listens, from its options."""
    local = Place(listen, port, advertise).is_local
    return Listening(listen, port, (advertise,) if advertise else (), local, relay)


async def lend_compute(request: Request, offer: Offer) -> bool:
    """Runs experts for others until a signal comes; whether it had begun to."""
    with suppress(OSError):
        os.nice(NICENESS)
    async with _joined("compute", request) as (session, model, identity, ended):
        executor = Executor(identity)
        report = _Report("compute", model, request.as_json)
        donor = ComputeDonor(session, model, offer, executor, Lending(on_change=report.lending))
        await donor.open()
        swarming = Swarming(session, identity, request.target.token, report.standing)
        async with member(swarming, request.place, executor.handlers(), executor) as (announcer, seen):
            samples = (
                executor_samples(executor),
                lending_samples(donor.lending),
                standing_samples(lambda: announcer),
            )
            with exposed(request.metrics, *samples) as metrics:
                report.exposing(metrics)
                await _until(
                    ended,
                    partial(donor.run, announcer, seen),
                    partial(donor.pause, announcer),
                    lambda: report.served(executor.done.calls, 0),
                )
            with trio.move_on_after(DRAIN_S):
                await executor.drain()
        report.ended(f"{executor.done.calls} calls of {len(executor.done.clients)} clients answered")
    return True


async def lend_disk(request: Request, size_bytes: int) -> bool:
    """Keeps chunks for others until a signal comes; whether it had begun to."""
    async with _joined("disk", request) as (session, model, identity, ended):
        maintainer = Maintainer()
        report = _Report("disk", model, request.as_json)
        donor = DiskDonor(session, model, size_bytes, maintainer, Lending(on_change=report.lending))
        swarming = Swarming(session, identity, request.target.token, report.standing)
        async with member(swarming, request.place, maintainer.handlers()) as (announcer, seen):
            samples = (
                maintainer_samples(maintainer),
                lending_samples(donor.lending),
                standing_samples(lambda: announcer),
            )
            with exposed(request.metrics, *samples) as metrics:
                report.exposing(metrics)
                await _until(
                    ended,
                    partial(donor.run, announcer, seen),
                    partial(donor.pause, announcer),
                    lambda: report.served(maintainer.served.chunks, maintainer.served.bytes),
                )
        report.ended(f"{maintainer.served.chunks} chunks served")
    return True


async def serve_whole(request: Request, copy: Path | None) -> bool:
    """Serves all of a model that somebody else signed until a signal comes; whether it had begun to.

    `copy`: a directory or GGUF file that has it; None: it is fetched.
    """
    async with _joined(WHOLE, request) as (session, model, identity, ended):
        maintainer = Maintainer()
        report = _Report(WHOLE, model, request.as_json)
        whole = WholeModel(session, model, maintainer, Lending(on_change=report.lending), copy)
        await whole.open()
        swarming = Swarming(session, identity, request.target.token, report.standing)
        async with member(swarming, request.place, maintainer.handlers()) as (announcer, seen):
            samples = (
                maintainer_samples(maintainer),
                lending_samples(whole.lending),
                standing_samples(lambda: announcer),
            )
            with exposed(request.metrics, *samples) as metrics:
                report.exposing(metrics)
                if not request.as_json:
                    say(f"Serving {model.info.name} for its operator, as a further server. Ctrl-C ends it.")
                await _until(ended, partial(whole.run, announcer, seen), lambda _: None)
        report.ended(f"{maintainer.served.chunks} chunks served")
    return True


@asynccontextmanager
async def _joined(
    kind: str, request: Request
) -> AsyncIterator[tuple[Session, OpenModel, Identity, trio.Event]]:
    """Joins as a donor, opens the model, and gives an event that a signal to end sets."""
    paths = home()
    with _only_one(kind):
        identity = await trio.to_thread.run_sync(Identity.load_or_create, paths.donor_key(kind))
        async with until_signalled() as ended, join(request.target, paths, False, identity) as session:
            yield session, await session.open_model(request.model), identity, ended


@contextmanager
def _only_one(kind: str) -> Iterator[None]:
    """Notes this process as the donor of its kind. Raises AlreadyLending."""
    path = home().donor_process(kind)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AlreadyLending(kind=kind, process=file.read()) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
        file.truncate(0)


def tell(kind: str, *, paused: bool) -> None:
    """Pauses or resumes the donor of a kind on this machine. Raises NothingLent."""
    try:
        with home().donor_process(kind).open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.kill(int(file.read()), signal.SIGUSR1 if paused else signal.SIGUSR2)
                click.echo(f"The donor of {kind} {'rests' if paused else 'goes on'}.")
                return
    except FileNotFoundError:
        pass
    raise NothingLent(kind=kind)


async def _until(
    ended: trio.Event,
    lend: Callable[[], Awaitable[None]],
    pause: Callable[[bool], None],
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Lends until the event; pauses and resumes on signals; tells now and then what was served."""

    async def listen() -> None:
        with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as signals:
            async for number in signals:
                pause(number == signal.SIGUSR1)

    async def often() -> None:
        while True:
            await trio.sleep(SERVED_S)
            tell()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lend)
        nursery.start_soon(listen)
        nursery.start_soon(often)
        await ended.wait()
        nursery.cancel_scope.cancel()


class _Report:
    """What a donor tells its owner."""

    def __init__(self, kind: str, model: OpenModel, as_json: bool) -> None:
        self._kind = kind
        self._model = model.info.name
        self._as_json = as_json
        self._served = (0, 0)
        self._unit = "experts" if kind == "compute" else "MiB"

    def lending(self, now: Lending) -> None:
        """What it holds changed."""
        if self._as_json:
            emit_json(
                {
                    "event": "lending",
                    "kind": self._kind,
                    "model": self._model,
                    "state": now.state,
                    "assigned": now.assigned,
                    "ready": now.ready,
                    "resident": now.resident,
                    "problem": now.problem,
                }
            )
        elif now.problem:
            say(f"{self._model}: {now.problem}")
        else:
            disk = now.ready - now.resident if self._kind == "compute" else 0
            streamed = f", {disk} of them on disk" if disk > 0 else ""
            say(f"{self._model}: {now.state}, {now.ready} of {now.assigned} {self._unit} ready{streamed}")

    def served(self, calls: int, bytes_out: int) -> None:
        """What was answered since the start; for programs, when it changed."""
        if self._as_json and (calls, bytes_out) != self._served:
            self._served = calls, bytes_out
            emit_json({"event": "served", "kind": self._kind, "calls": calls, "bytes": bytes_out})

    def exposing(self, metrics: Address | None) -> None:
        """Prometheus may ask from now on."""
        if metrics is None:
            return
        if self._as_json:
            emit_json({"event": "metrics", "address": str(metrics)})
        else:
            say(f"Metrics are at http://{metrics}/metrics.")

    def standing(self, standing: Standing) -> None:
        """The tracker sees this donor otherwise than before."""
        if self._as_json:
            emit_json(
                {
                    "event": "standing",
                    "registered": standing.registered,
                    "address": standing.address,
                    "obstacle": standing.obstacle,
                    "problem": standing.problem,
                }
            )
        elif standing.problem:
            say(f"The tracker does not know this donor now: {standing.problem}")
        elif not standing.address:
            say(f"Reached through the tracker's relay: {standing.obstacle}")

    def ended(self, text: str) -> None:
        """It left."""
        if self._as_json:
            emit_json({"event": "left", "kind": self._kind})
        else:
            say(f"Left the swarm: {text}.")
