"""A tracker whose clock and dial-backs are the test's, and what peers tell it and ask."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import (
    ChunkHolders,
    Contact,
    FindChunks,
    HoldChunks,
    HoldExperts,
    PeerRegistered,
    RegisterPeer,
    split_parts,
)
from swarm.wire.rpc import Unreachable
from tests.tracker.kit import FakeCaller, HandClock, Published, keys
from tracker.judge import Verdict
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore

PROFILE = b"p" * 32


HERE = Address("127.0.0.1", 50000)


def place(number: int) -> Address:
    return Address(f"198.51.{number // 250}.{number % 250 + 1}", 50000)


@dataclass
class World:
    """A tracker, its clock, and the addresses at which peers answer a dial back."""

    tracker: Tracker
    clock: HandClock
    store: MemoryStore
    answering: Callable[[Address, PeerKey], bool]

    def caller(self, number: int, address: Address | None = None) -> FakeCaller:
        return FakeCaller(self.tracker.handlers(), keys(number), address or place(number))

    async def peer(self, number: int, address: Address | None = None) -> tuple[FakeCaller, int]:
        """A registered caller and its generation."""
        caller = self.caller(number, address)
        reply, _ = await caller.ask(RegisterPeer("test", (), 7300))
        assert isinstance(reply, PeerRegistered)
        return caller, reply.generation

    async def publish(self, new: Published) -> Published:
        await self.tracker.publishing.accept(new.encoded, new.layout, new.layout_signature)
        return new


@asynccontextmanager
async def world(
    options: Options | None = None,
    verdict: Verdict | SwarmError | None = None,
    answering: Callable[[Address, PeerKey], bool] = lambda address, key: True,
    store: MemoryStore | None = None,
) -> AsyncIterator[World]:
    clock = HandClock()
    store = store or MemoryStore()

    async def dial_back(address: Address, key: PeerKey) -> None:
        if not answering(address, key):
            raise Unreachable(address=address, reason="nobody answers")

    async def verifier(accused: PeerKey, root: bytes, profile: bytes, proof: bytes) -> Verdict:
        if isinstance(verdict, SwarmError):
            raise verdict
        assert verdict is not None
        return verdict

    async with open_tracker(
        keys(0),
        store,
        options=options,
        verifier=None if verdict is None else verifier,
        dial_back=dial_back,
        clock=clock,
    ) as tracker:
        yield World(tracker, clock, store, answering)


async def hold(caller: FakeCaller, generation: int, root: bytes, held: IndexSet, revision: int = 1) -> None:
    data = held.encode()
    await caller.ask(HoldChunks(generation, revision, 0, root, (len(data),)), data)


async def hold_experts(
    caller: FakeCaller,
    generation: int,
    root: bytes,
    ready: IndexSet,
    resident: IndexSet,
    last_resort: bool = False,
) -> None:
    parts = [ready.encode(), resident.encode()]
    lengths = (len(parts[0]), len(parts[1]))
    await caller.ask(HoldExperts(generation, 1, root, PROFILE, last_resort, lengths), b"".join(parts))


async def find(caller: FakeCaller, root: bytes, wanted: bytes = b"") -> dict[Contact, IndexSet]:
    reply, payload = await caller.ask(FindChunks(root), wanted)
    assert isinstance(reply, ChunkHolders)
    parts = split_parts(payload, [holder.set_bytes for holder in reply.holders], reply.kind)
    return {h.contact: IndexSet.decode(part) for h, part in zip(reply.holders, parts, strict=True)}
