"""Donors that come and go, on simulated time: what becomes of the routes to experts, and how much is moved.

The tracker is a real one with its handlers asked directly; donors are simulated. A donor asks what to hold, loads it
bit by bit, says what is ready, and asks again when its heartbeat tells it that others left. It stays for five minutes
on average, leaves half of the times without a word, and comes back soon after.
"""

import heapq
import random
from dataclasses import dataclass, field
from typing import cast

import trio

from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry, Manifest, sign
from swarm.wire.address import Address
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    AssignExperts,
    ExpertHolders,
    FindExperts,
    Heartbeat,
    HeartbeatSeen,
    HoldExperts,
    LeaveSwarm,
    PeerRegistered,
    RegisterPeer,
    layout_statement,
    split_parts,
)
from swarm.wire.rpc import Peer
from tracker.server import Tracker, open_tracker
from tracker.store import MemoryStore

PROFILE = bytes(32)
LAYERS, EXPERTS, CHUNKS = 16, 64, 50
CAPACITIES = (32, 64, 64, 128, 200)
"""Experts that donors can carry."""
NOW_S = 1_800_000_000
WARM_UP_S = 60.0
"""Until then donors still join for the first time, and nothing is counted."""
ASK_EVERY_S = 20.0
LOAD_S_AN_EXPERT = 0.1
LOADED_AT_ONCE = 16
HEARTBEAT_S = 20.0
STAY_S, LEAST_STAY_S = 300.0, 40.0
AWAY_S = (5.0, 90.0)


@dataclass
class SimulatedClock:
    """A clock that stands still until it is moved."""

    now_s: float = 0.0

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self.now_s

    def unix_s(self) -> float:
        """See `Clock`."""
        return NOW_S + self.now_s

    def work_s(self) -> float:
        """See `Clock`: no work takes any time."""
        return 0.0


class Caller:
    """Somebody who asks a tracker's handlers directly; to them it is a `Peer`."""

    def __init__(self, tracker: Tracker, key: PeerKey, address: Address) -> None:
        self.key, self.address, self.name = key, address, f"peer {key.hex()[:8]}"
        self._handlers = tracker.handlers()

    async def wait_closed(self) -> None:
        """Its connection never ends."""
        await trio.sleep_forever()

    async def ask(self, message: Message, payload: bytes = b"") -> tuple[Message, bytes]:
        """What the tracker answers. Raises what its handler raises."""
        found = await self._handlers[type(message)](cast(Peer, self), message, payload)
        assert found is not None
        return found[0], bytes(found[1])


@dataclass
class Donor:
    """A donor as it is now; `life` counts its joins and departures."""

    caller: Caller
    capacity: int
    alive: bool = False
    life: int = 0
    generation: int = 0
    sequence: int = 0
    revision: int = 0
    departures: int = -1
    ready: IndexSet = EMPTY
    target: IndexSet = EMPTY


@dataclass
class Churned:
    """What became of it."""

    joins: int = 0
    """First ones and returns."""
    looks: int = 0
    """How often it was counted which experts have a route."""
    without_route: int = 0
    """The most experts at any time that no donor alive was ready for."""
    tracker_asked: int = 0
    not_found: int = 0
    """The most experts for which the tracker named no donor alive."""
    questions: int = 0
    """For an assignment."""
    assigned: int = 0
    """Experts in all answers."""
    moved: int = 0
    """Of what a donor had been told to hold, what the next answer left out."""
    least_replicas: int = 0
    most_replicas: int = 0
    """Of an expert, at the end, as assigned."""

    @property
    def moved_share(self) -> float:
        """The share of assignments that was moved."""
        return self.moved / self.assigned


@dataclass
class _Simulation:
    tracker: Tracker
    clock: SimulatedClock
    root: bytes
    luck: random.Random
    donors: list[Donor]
    chatter: Caller
    found: Churned = field(default_factory=Churned)
    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    count: int = 0

    def at(self, delay_s: float, what: str, number: int) -> None:
        """Has something happen to a donor later, unless it leaves before."""
        self.count += 1
        life = self.donors[number].life
        heapq.heappush(self.events, (self.clock.now_s + delay_s, self.count, what, number, life))

    async def run(self, seconds: float) -> None:
        next_asked_s = WARM_UP_S
        for number in range(len(self.donors)):
            self.at(self.luck.uniform(0, 20), "join", number)
        while self.events[0][0] < seconds:
            self.clock.now_s, _, what, number, life = heapq.heappop(self.events)
            for silent in self.tracker.registry.expire(self.clock.now_s):
                self.tracker.catalogue.forget(silent)
            if life == self.donors[number].life:
                await getattr(self, what)(number, self.donors[number])
            if self.clock.now_s >= WARM_UP_S and what in ("leave", "beat"):
                self.look()
            if self.clock.now_s >= next_asked_s:
                next_asked_s += ASK_EVERY_S
                await self.ask_as_a_chatter()

    def look(self) -> None:
        bits = 0
        for donor in self.donors:
            bits |= donor.ready.bits if donor.alive else 0
        self.found.looks += 1
        self.found.without_route = max(self.found.without_route, LAYERS * EXPERTS - bits.bit_count())

    async def ask_as_a_chatter(self) -> None:
        reply, payload = await self.chatter.ask(FindExperts(self.root, PROFILE, most=64))
        assert isinstance(reply, ExpertHolders)
        lengths = [size for holder in reply.holders for size in (holder.ready_bytes, holder.resident_bytes)]
        sets = [IndexSet.decode(part) for part in split_parts(payload, lengths, reply.kind)]
        alive = {donor.caller.key for donor in self.donors if donor.alive}
        bits = 0
        for holder, ready in zip(reply.holders, sets[::2], strict=True):
            bits |= ready.bits if holder.contact.key in alive else 0
        self.found.tracker_asked += 1
        self.found.not_found = max(self.found.not_found, LAYERS * EXPERTS - bits.bit_count())

    # ---------------------------------------------------------------- what donors do

    async def join(self, number: int, donor: Donor) -> None:
        donor.alive, donor.life = True, donor.life + 1
        self.found.joins += 1
        reply, _ = await donor.caller.ask(RegisterPeer("donor", (), 7300))
        assert isinstance(reply, PeerRegistered)
        donor.generation, donor.sequence, donor.revision = reply.generation, 0, 0
        donor.ready = EMPTY
        await self.ask(donor)
        self.at(0.1, "load", number)
        self.at(HEARTBEAT_S, "beat", number)
        self.at(max(LEAST_STAY_S, self.luck.expovariate(1 / STAY_S)), "leave", number)

    async def ask(self, donor: Donor) -> None:
        request = AssignExperts(donor.generation, self.root, PROFILE, donor.capacity)
        _, payload = await donor.caller.ask(request, donor.target.encode())
        target = IndexSet.decode(payload)
        self.found.questions += 1
        self.found.assigned += len(target)
        self.found.moved += len(donor.target - target)
        if donor.ready - target:
            donor.ready &= target
            await self.tell(donor)
        donor.target = target

    async def load(self, number: int, donor: Donor) -> None:
        missing = list(donor.target - donor.ready)[:LOADED_AT_ONCE]
        if missing:
            donor.ready |= IndexSet.of(missing)
            await self.tell(donor)
        self.at(LOAD_S_AN_EXPERT * LOADED_AT_ONCE, "load", number)

    async def tell(self, donor: Donor) -> None:
        donor.revision += 1
        data = donor.ready.encode()
        message = HoldExperts(donor.generation, donor.revision, self.root, PROFILE, False, (len(data),) * 2)
        await donor.caller.ask(message, data + data)

    async def beat(self, number: int, donor: Donor) -> None:
        reply, _ = await donor.caller.ask(Heartbeat(donor.generation, donor.sequence, donor.revision))
        assert isinstance(reply, HeartbeatSeen)
        assert not reply.resend
        donor.sequence += 1
        if reply.departures != donor.departures:
            donor.departures = reply.departures
            await self.ask(donor)
        self.at(HEARTBEAT_S, "beat", number)

    async def leave(self, number: int, donor: Donor) -> None:
        if self.luck.random() < 0.5:
            await donor.caller.ask(LeaveSwarm(donor.generation))
        donor.alive, donor.life, donor.ready = False, donor.life + 1, EMPTY
        self.at(self.luck.uniform(*AWAY_S), "join", number)


async def _publish(tracker: Tracker, luck: random.Random) -> bytes:
    """Publishes a model; returns its root."""
    operator = KeyPair(luck.randbytes(32))
    entry = FileEntry("model.safetensors", CHUNKS * CHUNK_BYTES, Digests(luck.randbytes(32 * CHUNKS)))
    signed = sign(Manifest("model", 1, NOW_S, NOW_S + 86_400, (entry,)), operator)
    root, layout = signed.manifest.root, (EXPERTS,) * LAYERS
    await tracker.publishing.accept(signed.encode(), layout, operator.sign(layout_statement(root, layout)))
    return root


async def churn(donors: int = 100, minutes: float = 10.0, seed: int = 0) -> Churned:
    """So many donors of a model with 16 layers of 64 experts for so many simulated minutes."""
    luck, clock = random.Random(seed), SimulatedClock()

    async def reached(address: Address, key: PeerKey) -> None:
        """Every donor can be dialled."""

    async with open_tracker(
        KeyPair(luck.randbytes(32)), MemoryStore(), dial_back=reached, clock=clock
    ) as tracker:

        def caller(host: str) -> Caller:
            return Caller(tracker, PeerKey(luck.randbytes(32)), Address(host, 40_000))

        root = await _publish(tracker, luck)
        everybody = [Donor(caller(f"198.51.{number}.7"), luck.choice(CAPACITIES)) for number in range(donors)]
        simulation = _Simulation(tracker, clock, root, luck, everybody, caller("192.0.2.1"))
        await simulation.run(60 * minutes)
        replicas = tracker.catalogue.model(root).profile(PROFILE).told.replicas()
        found = simulation.found
        found.least_replicas, found.most_replicas = int(replicas.min()), int(replicas.max())
        return found
