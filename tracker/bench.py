"""How quickly a tracker answers when many peers are registered, and what its relay carries.

    python -m tracker.bench [--peers 10000] [--json]

A tracker serves on a loopback port in this process; the peers are put into its register and index directly,
for ten thousand real processes do not fit one machine. The questions are real: encrypted, over the port, one
after another, while every peer's heartbeat arrives over other connections at its usual rate. What is
measured is the time from asking to having the answer, so network, encryption and the asker's own share are
in it.
"""

import argparse
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry, Manifest, sign
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages.tracker import (
    AssignChunks,
    AssignExperts,
    FindChunks,
    FindExperts,
    Heartbeat,
    HoldChunks,
    HoldExperts,
    ListModels,
    PeerRegistered,
    RegisterPeer,
    layout_statement,
)
from swarm.wire.rpc import Peer
from tracker.quota import Rate
from tracker.registry import Limits
from tracker.relay import RelayLimits
from tracker.relayed import RelayEnd
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore

CHUNKS = 300_000
LAYOUT = (0, *[128] * 48)
PROFILE = bytes(32)
WHOLE_SHARE, DISK_SHARE, COMPUTE_SHARE = 0.01, 0.5, 0.3
DISK_CHUNKS, EXPERTS_CARRIED = 20_000, 256
HEARTBEAT_CONNECTIONS = 4
RELAYED_BYTES = 64 << 20
NO_LIMIT = Rate(per_second=1e9, burst=1e9)


@dataclass(frozen=True)
class Figure:
    """The times of one kind of question, in milliseconds."""

    question: str
    count: int
    p50_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, question: str, times_s: Sequence[float]) -> "Figure":
        """The figure of measured times."""
        ordered = sorted(times_s)

        def at(share: float) -> float:
            return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

        return cls(question, len(ordered), at(0.5), at(0.99), at(1.0))


@dataclass(frozen=True)
class Result:
    """All figures."""

    peers: int
    heartbeats_per_s: float
    figures: tuple[Figure, ...]
    relay_bytes_per_s: float


async def populate(tracker: Tracker, peers: int, luck: random.Random) -> bytes:
    """Publishes a model of 300 GB and fills the register; returns the model's root."""
    operator = KeyPair.generate()
    entry = FileEntry("model.safetensors", CHUNKS * CHUNK_BYTES, Digests(luck.randbytes(32 * CHUNKS)))
    signed = sign(Manifest("a model of 300 GB", 1, 0, (1 << 40) - 1, (entry,)), operator)
    root = signed.manifest.root
    await tracker.publishing.accept(signed.encode(), LAYOUT, operator.sign(layout_statement(root, LAYOUT)))
    model = tracker.catalogue.model(root)
    experts = model.profile(PROFILE)
    total = model.layout.total
    for number in range(peers):
        key = PeerKey(luck.randbytes(32))
        address = Address(f"203.{number >> 16}.{number >> 8 & 255}.{number & 255}", 7300)
        tracker.registry.register(key, address, address, False, "bench", trio.current_time())
        tracker.catalogue.note(key, root)
        share = number / peers
        if share < WHOLE_SHARE:
            model.chunks.serve(key, IndexSet.full(CHUNKS), 0)
        elif share < WHOLE_SHARE + DISK_SHARE:
            start = luck.randrange(CHUNKS - DISK_CHUNKS)
            model.chunks.serve(key, IndexSet.from_ranges([(start, start + DISK_CHUNKS)]), 0)
        elif share < WHOLE_SHARE + DISK_SHARE + COMPUTE_SHARE:
            start = luck.randrange(total - EXPERTS_CARRIED)
            experts.serve(key, IndexSet.from_ranges([(start, start + EXPERTS_CARRIED)]), 0)
    return root


async def measure(peers: int, questions: int) -> Result:
    """Runs everything once; takes some ten seconds for 10,000 peers and 500 questions of each kind."""
    luck = random.Random(1)
    keys = KeyPair.generate()
    options = Options(
        limits=Limits(peers=2 * peers + 100, peers_per_network=peers, lifetime_s=1e6),
        relay=RelayLimits(bytes_per_second=1e12),
        requests_a_key=NO_LIMIT,
        requests_a_network=NO_LIMIT,
        work_a_key=NO_LIMIT,
        work_a_network=NO_LIMIT,
    )
    async with open_tracker(keys, MemoryStore(), options=options) as tracker, trio.open_nursery() as nursery:
        root = await populate(tracker, peers, luck)
        listeners = await rpc.listen("127.0.0.1", 0)
        serve = partial(rpc.serve, listeners, keys, tracker.handlers())
        (address, *_) = await nursery.start(serve)
        per_s = peers / options.limits.heartbeat_s
        for _ in range(HEARTBEAT_CONNECTIONS):
            nursery.start_soon(_beat, address, per_s / HEARTBEAT_CONNECTIONS)
        async with rpc.connect(address, KeyPair.generate()) as asker:
            figures = [
                await _time(question, questions, ask)
                for question, ask in (await _questions(asker, root, luck)).items()
            ]
        relay_bytes_per_s = await _relay(nursery, address)
        nursery.cancel_scope.cancel()
    return Result(peers, per_s, tuple(figures), relay_bytes_per_s)


async def _questions(
    asker: Peer, root: bytes, luck: random.Random
) -> dict[str, Callable[[], Awaitable[object]]]:
    reply = await asker.request(RegisterPeer("bench", (), 0))
    assert isinstance(reply.message, PeerRegistered)
    generation = reply.message.generation
    count = 0

    def number() -> int:
        nonlocal count
        count += 1
        return count

    def few() -> bytes:
        start = luck.randrange(CHUNKS - 64)
        return IndexSet.from_ranges([(start, start + 64)]).encode()

    held = [IndexSet.from_ranges([(start, start + DISK_CHUNKS)]).encode() for start in (1000, 40_000)]
    scattered = [IndexSet(luck.getrandbits(CHUNKS)).encode() for _ in range(2)]
    experts = IndexSet.from_ranges([(0, EXPERTS_CARRIED)]).encode()

    def hold(sets: list[bytes]) -> Awaitable[object]:
        revision = number()
        data = sets[revision % 2]
        return asker.request(HoldChunks(generation, revision, 0, root, (len(data),)), data)

    def change() -> Awaitable[object]:
        added, removed = few(), few()
        revision = number()
        message = HoldChunks(generation, revision, revision - 1, root, (len(added), len(removed)))
        return asker.request(message, added + removed)

    def hold_experts() -> Awaitable[object]:
        message = HoldExperts(generation, number(), root, PROFILE, False, (len(experts),) * 2)
        return asker.request(message, experts * 2)

    return {
        "heartbeat": lambda: asker.request(Heartbeat(generation, number(), 0)),
        "list models": lambda: asker.request(ListModels()),
        "find all chunks": lambda: asker.request(FindChunks(root)),
        "find 64 chunks": lambda: asker.request(FindChunks(root), few()),
        "find all experts": lambda: asker.request(FindExperts(root, PROFILE)),
        "hold 20,000 chunks": lambda: hold(held),
        "change 128 chunks": change,
        "hold 150,000 scattered chunks": lambda: hold(scattered),
        "hold experts": hold_experts,
        "assign 20,000 chunks": lambda: asker.request(AssignChunks(generation, root, DISK_CHUNKS), held[0]),
        "assign 256 experts": lambda: asker.request(
            AssignExperts(generation, root, PROFILE, EXPERTS_CARRIED), experts
        ),
    }


async def _time(question: str, count: int, ask: Callable[[], Awaitable[object]]) -> Figure:
    times_s = []
    for _ in range(count):
        started_s = trio.current_time()
        await ask()
        times_s.append(trio.current_time() - started_s)
    return Figure.of(question, times_s)


async def _beat(address: Address, per_s: float) -> None:
    """Sends heartbeats at a rate, as one registered peer after another would."""
    async with rpc.connect(address, KeyPair.generate()) as peer:
        reply = await peer.request(RegisterPeer("bench", (), 0))
        assert isinstance(reply.message, PeerRegistered)
        due_s, sequence = trio.current_time(), 0
        while True:
            due_s += 1 / per_s
            await trio.sleep_until(due_s)
            await peer.request(Heartbeat(reply.message.generation, sequence, 0))
            sequence += 1


async def _relay(nursery: trio.Nursery, address: Address) -> float:
    """Bytes a second through one relayed stream, with all three parties in this process."""
    hidden, asker = RelayEnd(), RelayEnd()
    keys = KeyPair.generate()
    hidden.attach(await rpc.dial(nursery, address, keys, handlers=hidden.handlers()))
    asker.attach(await rpc.dial(nursery, address, KeyPair.generate(), handlers=asker.handlers()))
    reply = await hidden.peer.request(RegisterPeer("bench", (), 0))
    assert isinstance(reply.message, PeerRegistered)
    await hidden.listen(reply.message.generation)
    stream = await asker.open(keys.key)
    _, other = await hidden.accept()
    started_s = trio.current_time()
    nursery.start_soon(stream.send_all, bytes(RELAYED_BYTES))
    received = 0
    while received < RELAYED_BYTES:
        received += len(await other.receive_some())
    return RELAYED_BYTES / (trio.current_time() - started_s)


def main(arguments: Sequence[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tracker.bench", description=__doc__)
    parser.add_argument("--peers", type=int, default=10_000)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = trio.run(measure, options.peers, options.questions)
    if options.json:
        figures = [vars(figure) for figure in result.figures]
        print(json.dumps(vars(result) | {"figures": figures}))
        return
    beside = f"{result.heartbeats_per_s:.0f} heartbeats a second beside the questions"
    print(f"{result.peers} peers registered, {beside}; milliseconds")
    print(f"{'question':32} {'p50':>8} {'p99':>8} {'worst':>8}")
    for figure in result.figures:
        print(f"{figure.question:32} {figure.p50_ms:8.3f} {figure.p99_ms:8.3f} {figure.worst_ms:8.3f}")
    print(f"relay: {result.relay_bytes_per_s / 1e6:.0f} MB/s through one stream, ends in the same process")


if __name__ == "__main__":
    main(sys.argv[1:])
