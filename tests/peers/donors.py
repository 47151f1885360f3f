"""Donors inside the test's process: real executors on loopback, honest or not, and a chatter that asks them."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import trio

from engine.engine import Engine, Options
from engine.expert_bank import ExpertBank
from engine.generate import greedy
from engine.kernels import ExpertRows
from engine.source import DirectorySource
from swarm.peers.audit import Conviction
from swarm.peers.banks import layout_of, open_experts, warm
from swarm.peers.doors import Doors
from swarm.peers.executor import Bank, Executor, profile_of
from swarm.peers.pool import keep_pool
from swarm.peers.remote import RemoteExperts, Rules
from swarm.peers.tracking import ExpertsHeld, TrackerClient
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages.experts import RunExperts
from swarm.wire.messages.tracker import Contact, ExpertHolder

ROOT = b"\7" * 32
PROMPT = list(range(5, 15))
Run = Callable[..., ExpertRows]
Delay = Callable[[], Awaitable[None]]


def liar(run: Run, lies: Callable[[], bool], *, loud: bool = False) -> Run:
    """Gives a wrong value where `lies` says so; loud: nothing but wrong values, so that tokens change."""

    def lying(*arguments: Any) -> ExpertRows:
        outputs = run(*arguments)
        if lies() and outputs.values.size:
            if loud:
                return ExpertRows(-outputs.values, outputs.scale * 9)
            values = outputs.values.copy()
            values[0, 0] += 1 if values[0, 0] < 1000 else -1
            return ExpertRows(values, outputs.scale)
        return outputs

    return lying


@dataclass
class Twisted:
    """A bank whose `run` is another."""

    bank: ExpertBank
    run: Run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bank, name)


@dataclass
class Donor:
    """One donor. `before` is awaited before each call; `twist` makes another `run` of the bank's."""

    number: int
    held: Iterable[int] | None = None
    """Numbers of its experts; None: all."""
    twist: Callable[[Run], Run] | None = None
    before: Delay | None = None
    last_resort: bool = False
    weights: str = "auto"
    keys: KeyPair = field(init=False)
    contact: Contact = field(init=False)
    executor: Executor = field(init=False)
    asked: int = 0

    def __post_init__(self) -> None:
        self.keys = KeyPair(bytes([self.number]) * 32)
        self.executor = Executor(self.keys)

    @property
    def key(self) -> PeerKey:
        return self.keys.key

    def ready(self, bank: ExpertBank) -> IndexSet:
        layout = layout_of(bank)
        return IndexSet.full(layout.total) if self.held is None else IndexSet.of(self.held)

    async def serve(self, bank: ExpertBank, task_status: trio.TaskStatus[None]) -> None:
        experts = bank if self.twist is None else cast(ExpertBank, Twisted(bank, self.twist(bank.run)))
        profile = profile_of(ROOT, self.weights)
        self.executor.add(Bank(profile, experts, layout_of(bank), self.ready(bank), self.last_resort))
        handlers = dict(self.executor.handlers())
        for kind in list(handlers):
            if issubclass(kind, RunExperts):
                handlers[kind] = self._counted(handlers[kind])
        listeners = await rpc.listen("127.0.0.1", 0)
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(partial(rpc.serve), listeners, self.keys, handlers)
            self.contact = Contact(self.key, address.host, address.port, False)
            self.scope = nursery.cancel_scope
            task_status.started()

    def _counted(self, handler: rpc.Handler) -> rpc.Handler:
        async def counted(caller: rpc.Peer, message: RunExperts, payload: rpc.Buffer) -> Any:
            self.asked += 1
            if self.before is not None:
                await self.before()
            return await handler(caller, message, payload)

        return counted


@dataclass
class Listed:
    """Donors as a tracker would name them; `donors` may change."""

    donors: list[Donor]
    bank: ExpertBank

    async def executors(
        self, root: bytes, profile: bytes, wanted: IndexSet | None, expert_count: int
    ) -> tuple[ExpertsHeld, ...]:
        return tuple(
            ExpertsHeld(
                ExpertHolder(donor.contact, donor.last_resort, 0, 0, 1, 1),
                donor.ready(self.bank),
                donor.ready(self.bank),
            )
            for donor in self.donors
        )


@dataclass
class Swarm:
    """A chatter and its donors."""

    engine: Engine
    experts: RemoteExperts
    listed: Listed
    nursery: trio.Nursery
    convictions: list[Conviction]

    async def tokens(self, count: int = 8) -> list[int]:
        """Greedy tokens by the donors."""
        work = partial(greedy, self.engine.model, self.experts, PROMPT, count)
        return (await trio.to_thread.run_sync(work))[0]

    def local(self, count: int = 8) -> list[int]:
        """Greedy tokens without them."""
        return greedy(self.engine.model, self.engine.experts, PROMPT, count)[0]

    def remote(self, donor: Donor) -> Any:
        """How the chatter sees a donor."""
        return self.experts.pool.remotes[donor.key]

    async def add(self, donor: Donor) -> None:
        """A donor joins."""
        await self.nursery.start(donor.serve, self.listed.bank)
        self.listed.donors.append(donor)
        await self.experts.pool.refresh()


@asynccontextmanager
async def swarm_of(
    model: Path,
    donors: Sequence[Donor],
    rules: Rules | None = None,
    weights: str = "auto",
    luck: random.Random | None = None,
) -> AsyncIterator[Swarm]:
    """A chatter of a model directory with these donors; `luck` draws its audits."""
    options = Options(weights=cast(Any, weights))
    with DirectorySource(model) as source, Engine.open(source, options) as engine:
        bank = open_experts(source, cast(Any, weights))
        bank.preload()
        warm(bank, list(bank.layout.all()))
        convictions: list[Conviction] = []
        async with trio.open_nursery() as nursery:
            for donor in donors:
                donor.weights = weights
                await nursery.start(donor.serve, bank)
            listed = Listed(list(donors), bank)
            keys = KeyPair(b"\xff" * 32)
            doors = Doors(nursery, keys, TrackerClient(cast(Any, None), Address("127.0.0.1", 1), None))
            profile = profile_of(ROOT, weights)
            pool = await nursery.start(keep_pool, listed, doors, profile, layout_of(bank))
            rules = rules or Rules.parse("off", 0.0)
            experts = RemoteExperts(pool, engine.bank, rules, convictions.append, luck)
            experts.doubts.patience_s = 120.0
            yield Swarm(engine, experts, listed, nursery, convictions)
            nursery.cancel_scope.cancel()
        bank.close()


def every(count: int) -> Callable[[], bool]:
    """True at every `count`-th call."""
    seen = 0

    def now() -> bool:
        nonlocal seen
        seen += 1
        return seen % count == 0

    return now


def at_random(share: float, seed: int) -> Callable[[], bool]:
    """True for a share of calls."""
    luck = np.random.default_rng(seed)
    return lambda: bool(luck.random() < share)
