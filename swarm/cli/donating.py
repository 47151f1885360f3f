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
from swarm.cli.reports import say_trouble
from swarm.errors import SwarmError
from swarm.peers.announce import Announcer, Standing
from swarm.peers.disk import DiskDonor
from swarm.peers.donor import ComputeDonor, Lending, Offer
from swarm.peers.executor import Executor
from swarm.peers.maintainer import Maintainer
from swarm.peers.membership import Listening, Swarming, member
from swarm.peers.metrics import (
    Samples,
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
from swarm.units import plural
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.race import plain_errors

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
    async with _joined("compute", request) as (joined, report):
        executor = Executor(joined.identity)
        lending = Lending(on_change=report.lending)
        donor = ComputeDonor(joined.session, joined.model, offer, executor, lending)
        await donor.open()

        def served() -> None:
            report.served(executor.done.calls, 0)

        part = _Part(donor, executor.handlers(), executor_samples(executor), donor.pause, served, executor)
        await _take_part(request, joined, report, part)
        done = executor.done
        report.ended(f"{plural(done.calls, 'call')} of {plural(len(done.clients), 'client')} answered")
    return True


async def lend_disk(request: Request, size_bytes: int) -> bool:
    """Keeps chunks for others until a signal comes; whether it had begun to."""
    async with _joined("disk", request) as (joined, report):
        maintainer = Maintainer()
        lending = Lending(on_change=report.lending)
        donor = DiskDonor(joined.session, joined.model, size_bytes, maintainer, lending)
        await donor.open()

        def served() -> None:
            report.served(maintainer.served.chunks, maintainer.served.bytes)

        part = _Part(donor, maintainer.handlers(), maintainer_samples(maintainer), donor.pause, served)
        await _take_part(request, joined, report, part)
        report.ended(f"{plural(maintainer.served.chunks, 'chunk')} served")
    return True


async def serve_whole(request: Request, copy: Path | None) -> bool:
    """Serves all of a model that somebody else signed until a signal comes; whether it had begun to.

    `copy`: a directory or GGUF file that has it; None: it is fetched.
    """
    async with _joined(WHOLE, request) as (joined, report):
        maintainer = Maintainer()
        lending = Lending(on_change=report.lending)
        whole = WholeModel(joined.session, joined.model, maintainer, lending, copy)
        await whole.open()
        part = _Part(whole, maintainer.handlers(), maintainer_samples(maintainer))
        await _take_part(request, joined, report, part)
        report.ended(f"{plural(maintainer.served.chunks, 'chunk')} served")
    return True


@dataclass
class _Wish:
    """Whether the owner wants a pause, from the first moment of the process on; `follow` says who acts on it."""

    paused: bool = False
    act: Callable[[bool], None] = lambda _: None

    def take(self, paused: bool) -> None:
        """The owner wants it so now."""
        self.paused = paused
        self.act(paused)

    def follow(self, act: Callable[[bool], None]) -> None:
        """From now on this acts, also on what was wished before."""
        self.act = act
        if self.paused:
            act(True)


@dataclass(frozen=True)
class _Joined:
    """A swarm and a model of it, joined as a donor."""

    session: Session
    model: OpenModel
    identity: Identity
    ended: trio.Event
    """Set by a signal to end."""
    wish: _Wish


@dataclass(frozen=True)
class _Part:
    """What a donor does in the swarm."""

    donor: ComputeDonor | DiskDonor | WholeModel
    handlers: rpc.Handlers
    samples: Samples
    pause: Callable[[Announcer, bool], None] = lambda announcer, paused: None
    served: Callable[[], None] = lambda: None
    """Called now and then, to tell what was served."""
    executor: Executor | None = None


@asynccontextmanager
async def _joined(kind: str, request: Request) -> AsyncIterator[tuple[_Joined, "_Report"]]:
    """Joins as a donor of a kind, and opens the model."""
    paths = home()
    async with _wishes() as wish:  # whoever reads this process's number may signal it at once
        with _only_one(kind):
            identity = await trio.to_thread.run_sync(Identity.load_or_create, paths.donor_key(kind))
            async with until_signalled() as ended, join(request.target, paths, False, identity) as session:
                model = await session.open_model(request.model)
                yield _Joined(session, model, identity, ended, wish), _Report(kind, model, request.as_json)


async def _take_part(request: Request, joined: _Joined, report: "_Report", part: _Part) -> None:
    """Is a member of the swarm and lends, until a signal comes."""
    swarming = Swarming(joined.session, joined.identity, request.target.token, report.standing)
    async with member(swarming, request.place, part.handlers, part.executor) as (announcer, seen):
        lending, standing = lending_samples(part.donor.lending), standing_samples(lambda: announcer)
        with exposed(request.metrics, part.samples, lending, standing) as metrics:
            report.begun(metrics)
            joined.wish.follow(partial(part.pause, announcer))
            await _until(joined.ended, partial(part.donor.run, announcer, seen), part.served)
        if part.executor is not None:
            with trio.move_on_after(DRAIN_S):
                await part.executor.drain()


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
                process = file.read()
                if not process:  # it has only just begun
                    raise NothingLent(kind=kind) from None
                os.kill(int(process), signal.SIGUSR1 if paused else signal.SIGUSR2)
                click.echo(f"The donor of {kind} {'rests' if paused else 'goes on'}.")
                return
    except FileNotFoundError:
        pass
    raise NothingLent(kind=kind)


@asynccontextmanager
async def _wishes() -> AsyncIterator[_Wish]:
    """Hears the signals to pause and to resume for the length of a block."""
    wish = _Wish()

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as signals:
            task_status.started()
            async for number in signals:
                wish.take(number == signal.SIGUSR1)

    async with plain_errors() as nursery:
        await nursery.start(listen)
        yield wish
        nursery.cancel_scope.cancel()


async def _until(ended: trio.Event, lend: Callable[[], Awaitable[None]], tell: Callable[[], None]) -> None:
    """Lends until the event; tells now and then what was served."""

    async def often() -> None:
        while True:
            await trio.sleep(SERVED_S)
            tell()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lend)
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
        self._trouble: tuple[str, ...] = ()
        self._unit = "experts" if kind == "compute" else "MiB"

    def lending(self, now: Lending) -> None:
        """What it holds changed, or what was found out about the model."""
        if now.trouble != self._trouble:
            self._trouble = now.trouble
            say_trouble(now.trouble, self._as_json)
        elif self._as_json:
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

    def begun(self, metrics: Address | None) -> None:
        """It takes part from now on, and Prometheus may ask."""
        if metrics is not None:
            if self._as_json:
                emit_json({"event": "metrics", "address": str(metrics)})
            else:
                say(f"Metrics are at http://{metrics}/metrics.")
        if self._kind == WHOLE and not self._as_json:
            say(f"Serving {self._model} for its operator, as a further server. Ctrl-C ends it.")

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
