"""A hundred donors come and go for ten simulated minutes: every expert keeps a route, little is moved."""

import heapq
import random
from dataclasses import dataclass, field

import pytest

from swarm.wire.address import Address
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.keys import PeerKey
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
    split_parts,
)
from tests.tracker.kit import FakeCaller, HandClock, keys, manifest, published
from tracker.server import Tracker, open_tracker
from tracker.store import MemoryStore

PROFILE = b"p" * 32
LAYERS, EXPERTS = 16, 64
DONORS, MINUTES = 100, 10
WARM_UP_S = 60
LOAD_S_AN_EXPERT = 0.1


@dataclass
class Donor:
    """A donor: asks what to hold, loads it bit by bit, says what is ready, and often goes without a word."""

    caller: FakeCaller
    capacity: int
    alive: bool = False
    life: int = 0
    generation: int = 0
    sequence: int = 0
    revision: int = 0
    departures: int = -1
    ready: IndexSet = EMPTY
    target: IndexSet = EMPTY
    moved: int = 0
    asked: int = 0


@dataclass
class Simulation:
    tracker: Tracker
    clock: HandClock
    root: bytes
    luck: random.Random
    donors: list[Donor] = field(default_factory=list)
    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    count: int = 0

    def at(self, delay_s: float, what: str, number: int) -> None:
        self.count += 1
        life = self.donors[number].life
        heapq.heappush(self.events, (self.clock.now_s + delay_s, self.count, what, number, life))

    async def run(self) -> None:
        total = IndexSet.full(LAYERS * EXPERTS)
        next_look_s = float(WARM_UP_S)
        for number in range(DONORS):
            self.at(self.luck.uniform(0, 20), "join", number)
        while self.events and self.events[0][0] < MINUTES * 60:
            self.clock.now_s, _, what, number, life = heapq.heappop(self.events)
            donor = self.donors[number]
            for silent in self.tracker.registry.expire(self.clock.now_s):
                self.tracker.catalogue.forget(silent)
            if life == donor.life:
                await getattr(self, what)(number, donor)
            if self.clock.now_s >= WARM_UP_S and what in ("leave", "beat"):
                assert self.routes() == total, f"no route at {self.clock.now_s:.1f} s"
            if self.clock.now_s >= next_look_s:
                next_look_s += 20
                assert await self.found() == total, f"not found at {self.clock.now_s:.1f} s"

    def routes(self) -> IndexSet:
        bits = 0
        for donor in self.donors:
            if donor.alive:
                bits |= donor.ready.bits
        return IndexSet(bits)

    async def found(self) -> IndexSet:
        """The experts for which the tracker names a donor that is alive."""
        chatter = FakeCaller(self.tracker.handlers(), keys(5000), Address("192.0.2.1", 1))
        reply, payload = await chatter.ask(FindExperts(self.root, PROFILE, most=64))
        assert isinstance(reply, ExpertHolders)
        lengths = [n for holder in reply.holders for n in (holder.ready_bytes, holder.resident_bytes)]
        sets = [IndexSet.decode(part) for part in split_parts(payload, lengths, reply.kind)]
        alive: set[PeerKey] = {donor.caller.key for donor in self.donors if donor.alive}
        bits = 0
        for holder, ready in zip(reply.holders, sets[::2], strict=True):
            bits |= ready.bits if holder.contact.key in alive else 0
        return IndexSet(bits)

    async def join(self, number: int, donor: Donor) -> None:
        donor.alive, donor.life = True, donor.life + 1
        reply, _ = await donor.caller.ask(RegisterPeer("donor", (), 7300))
        assert isinstance(reply, PeerRegistered)
        donor.generation, donor.sequence, donor.revision = reply.generation, 0, 0
        donor.ready = EMPTY
        await self.ask(donor)
        self.at(0.1, "load", number)
        self.at(20, "beat", number)
        self.at(max(40, self.luck.expovariate(1 / 300)), "leave", number)

    async def ask(self, donor: Donor) -> None:
        request = AssignExperts(donor.generation, self.root, PROFILE, donor.capacity)
        _, payload = await donor.caller.ask(request, donor.target.encode())
        target = IndexSet.decode(payload)
        donor.asked += 1
        donor.moved += len(donor.target - target)
        if donor.ready - target:
            donor.ready &= target
            await self.tell(donor)
        donor.target = target

    async def load(self, number: int, donor: Donor) -> None:
        missing = list(donor.target - donor.ready)[:16]
        if missing:
            donor.ready |= IndexSet.of(missing)
            await self.tell(donor)
        self.at(LOAD_S_AN_EXPERT * max(16, len(missing)), "load", number)

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
        self.at(20, "beat", number)

    async def leave(self, number: int, donor: Donor) -> None:
        if self.luck.random() < 0.5:
            await donor.caller.ask(LeaveSwarm(donor.generation))
        donor.alive, donor.life, donor.ready = False, donor.life + 1, EMPTY
        self.at(self.luck.uniform(5, 90), "join", number)


@pytest.mark.parametrize("seed", range(2))
async def test_every_expert_keeps_a_route_and_little_is_moved(seed: int) -> None:
    luck = random.Random(seed)
    clock = HandClock()

    async def dial_back(address: Address, key: PeerKey) -> None:
        return

    async with open_tracker(keys(0), MemoryStore(), dial_back=dial_back, clock=clock) as tracker:
        new = published(manifest(chunks=50), layout=(EXPERTS,) * LAYERS)
        root = await tracker.publishing.accept(new.encoded, new.layout, new.layout_signature)
        simulation = Simulation(tracker, clock, root, luck)
        for number in range(DONORS):
            address = Address(f"198.51.{number}.7", 40_000)
            capacity = luck.choice([32, 64, 64, 128, 200])
            simulation.donors.append(
                Donor(FakeCaller(tracker.handlers(), keys(number + 1), address), capacity)
            )
        await simulation.run()
        joins = sum(donor.life for donor in simulation.donors) / 2
        carried = sum(donor.capacity for donor in simulation.donors) / DONORS
        moved = sum(donor.moved for donor in simulation.donors)
        asked = sum(donor.asked for donor in simulation.donors)
        replicas = tracker.catalogue.model(root).profile(PROFILE).told.replicas()
        told = f"{joins:.0f} joins, {asked} questions, {moved} experts moved"
        print(f"{told}, replicas {replicas.min()} to {replicas.max()}")
        assert joins > DONORS * 1.5
        assert moved / asked < 0.02 * carried, told
        assert replicas.max() - replicas.min() <= 3
