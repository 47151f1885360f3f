"""A compute donor: asks the tracker which experts to hold, fetches exactly their bytes, and runs them.

1. The model's manifest is accepted and its headers are read through the mirror; nothing else is fetched.
2. The tracker assigns experts, those that fewest hold first, as many as the donor can carry.
3. Their bytes come through the mirror, each MiB verified, and are packed. Experts beyond the memory are kept
   in packed form on disk and read from there when they are asked for.
4. Only then are they announced, a part at a time, so that a large share is of use before all of it is here.
5. When donors left, or after a while, the tracker is asked again; what is given up is announced as such first.
6. A later version of the model, signed by the same operator, takes the place of the one before. If its files
   are the same, the experts in memory serve both; else those of the old one are given up first.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from engine.errors import EngineError
from engine.memory import available_bytes
from engine.numerics import Weights
from swarm.errors import SwarmError
from swarm.peers.announce import Announcer
from swarm.peers.banks import layout_of, open_experts, warm
from swarm.peers.executor import Bank, Executor, profile_of
from swarm.peers.models import OpenModel
from swarm.peers.session import Session
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.messages.tracker import Assigned, AssignExperts, HeartbeatSeen

RESERVE_BYTES = 1 << 30
"""Memory left to everything else on the machine."""
SHARE_OF_MEMORY = 0.7
LOADED_AT_ONCE = 64
"""Experts that are loaded before they are announced."""
ASK_AGAIN_S = 60.0
RETRY_S = 10.0


class NoExperts(SwarmError):
    """“{model}” has no routed experts, so there is nothing to lend compute for."""


@dataclass(frozen=True)
class Offer:
    """What a compute donor gives. `ram_bytes` None: most of what is free; `experts` None: what fits that."""

    ram_bytes: int | None = None
    experts: int | None = None
    weights: Weights = "auto"


def memory_for(offer: Offer, free_bytes: int) -> int:
    """The bytes experts may take: what was offered, but never the machine's reserve."""
    most = max(0, free_bytes - RESERVE_BYTES)
    return min(int(free_bytes * SHARE_OF_MEMORY) if offer.ram_bytes is None else offer.ram_bytes, most)


@dataclass
class Lending:
    """What a donor does now, for whoever looks."""

    state: str = "starting"
    """starting | fetching | running | paused."""
    assigned: int = 0
    ready: int = 0
    resident: int = 0
    problem: str = ""
    trouble: tuple[str, ...] = ()
    """What those who chat with the model will be told, where that was looked at."""
    on_change: Callable[["Lending"], None] = field(default=lambda _: None, repr=False)

    def now(self, **changes: object) -> None:
        """Takes in changes, and tells of them."""
        before = vars(self).copy()
        for name, value in changes.items():
            setattr(self, name, value)
        if before != vars(self):
            self.on_change(self)


async def news(seen: trio.MemoryReceiveChannel[HeartbeatSeen], known: tuple[int, int]) -> tuple[int, int]:
    """Waits until the tracker counts more departures of donors, or more models published, than are known; both."""
    async for answer in seen:
        if answer.departures > known[0] or answer.models > known[1]:
            return answer.departures, answer.models
    await trio.sleep_forever()


async def keep_settled(
    settle: Callable[[], Awaitable[None]],
    lending: Lending,
    seen: trio.MemoryReceiveChannel[HeartbeatSeen],
    meanwhile: Callable[[], Awaitable[None]] = trio.sleep_forever,
) -> None:
    """Settles what to hold, anew when there is `news` and after a while, until cancelled.

    What stands in the way is told, and it is tried again. `meanwhile` runs between two times, and ends the wait when it
    returns.
    """

    async def wait(rest: trio.CancelScope) -> None:
        await meanwhile()
        rest.cancel()

    counted = (0, 0)
    while True:
        pause_s = ASK_AGAIN_S
        try:
            await settle()
        except (SwarmError, EngineError, OSError) as error:
            lending.now(problem=str(error))
            pause_s = RETRY_S
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, nursery.cancel_scope)
            with trio.move_on_after(pause_s):
                counted = await news(seen, counted)
            nursery.cancel_scope.cancel()


class ComputeDonor:
    """See the module. `bank` answers for what is ready; pausing keeps everything in memory."""

    def __init__(
        self, session: Session, model: OpenModel, offer: Offer, executor: Executor, lending: Lending
    ) -> None:
        self._session = session
        self._model = model
        self._offer = offer
        self._executor = executor
        self._assigned = EMPTY
        self.lending = lending
        self.bank: Bank

    async def open(self) -> None:
        """Reads the model's headers and takes memory. Raises EngineError, SwarmError."""
        self.bank = await self._executor.thread.run(partial(self._open, self._model))
        self._executor.add(self.bank)

    def _open(self, model: OpenModel) -> Bank:
        offer, name = self._offer, model.info.name
        ram_bytes = memory_for(offer, available_bytes())
        cache = self._session.home.packed
        experts = open_experts(model.source, offer.weights, ram_bytes, cache)
        if not experts.layout.layers:
            raise NoExperts(model=name)
        profile = profile_of(model.signed.manifest.root, offer.weights)
        return Bank(profile, experts, layout_of(experts), EMPTY)

    @property
    def capacity(self) -> int:
        """Experts to ask for."""
        fits = self.bank.experts.capacity
        return min(self.bank.layout.total, fits if self._offer.experts is None else self._offer.experts)

    async def run(self, announcer: Announcer, seen: trio.MemoryReceiveChannel[HeartbeatSeen]) -> None:
        """Holds what the tracker assigns, until cancelled."""
        await keep_settled(partial(self._settle, announcer), self.lending, seen)

    async def _settle(self, announcer: Announcer) -> None:
        """Asks what to hold and comes to hold it."""
        await self._follow(announcer)
        bank, profile = self.bank, self.bank.profile
        request = AssignExperts(announcer.generation, profile.root, profile.digest, self.capacity)
        answer = await self._session.tracker.ask(request, Assigned, self._assigned.encode())
        self._assigned = wanted = IndexSet.decode(answer.payload, bank.layout.total)
        self.lending.now(assigned=len(wanted), problem="")
        kept = bank.ready & wanted
        if kept != bank.ready:
            self._ready(announcer, kept)
        missing = bank.layout.experts(wanted - kept)
        for start in range(0, len(missing), LOADED_AT_ONCE):
            self.lending.now(state="paused" if self._executor.paused else "fetching")
            part = missing[start : start + LOADED_AT_ONCE]
            await trio.to_thread.run_sync(self._load, part, abandon_on_cancel=True)
            if not bank.ready:
                await self._executor.thread.run(lambda: warm(bank.experts, part))  # noqa: B023 - awaited here
            more = IndexSet.of(bank.layout.index(layer, expert) for layer, expert in part)
            self._ready(announcer, bank.ready | more)
        self.lending.now(state="paused" if self._executor.paused else "running")

    async def _follow(self, announcer: Announcer) -> None:
        """Goes on with a later version of the model, when there is one. Raises EngineError, SwarmError."""
        later = await self._session.later(self._model)
        if later is None:
            return
        before, old = self._model, self.bank
        if later.signed.manifest.content == before.signed.manifest.content:
            profile = profile_of(later.signed.manifest.root, self._offer.weights)
            self.bank = Bank(profile, old.experts, old.layout, old.ready)
        else:
            self._assigned = EMPTY
            self._ready(announcer, EMPTY)
            self._executor.remove(old)
            await self._executor.thread.run(old.experts.close)
            self.bank = await self._executor.thread.run(partial(self._open, later))
        self._model = later
        self._executor.add(self.bank)
        announcer.changed()

    def _load(self, experts: list[tuple[int, int]]) -> None:
        self.bank.experts.preload(wanted=experts)

    def _ready(self, announcer: Announcer, ready: IndexSet) -> None:
        self.bank.answer_for(ready)
        self.lending.now(ready=len(ready), resident=len(self.bank.resident()))
        announcer.changed()

    def pause(self, announcer: Announcer, paused: bool) -> None:
        """Stops or goes on answering; what is held stays in memory."""
        self._executor.paused = paused
        state = "running" if self.bank.ready == self._assigned else "fetching"
        self.lending.now(state="paused" if paused else state)
        announcer.changed()
