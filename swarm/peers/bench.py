"""Measuring experts on peers: what `swarm bench swarm` runs.

Donors are processes of their own (`python -m swarm.peers.bench OPTIONS`) with made-up weights; the chatter
finds them in a fixed list instead of through a tracker. Everything else is what runs in a swarm: real
connections over loopback, encrypted, real executors, real rounds.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import trio

from engine.arrays import F32, I32
from engine.engine import Engine
from engine.expert_bank import ExpertBank
from engine.kernels import ExpertRows, Rows, set_threads
from engine.synthetic import SyntheticSource
from swarm.peers.audit import Conviction
from swarm.peers.banks import layout_of, open_experts, warm
from swarm.peers.bench_process import Helper, helper, tell, until_let_go
from swarm.peers.delay_bench import distance
from swarm.peers.doors import Doors
from swarm.peers.executor import Executor, profile_of, whole_bank
from swarm.peers.local_bench import decode_speed, local_decoding
from swarm.peers.network import NetworkThread
from swarm.peers.pool import keep_pool
from swarm.peers.remote import RemoteExperts, Rules
from swarm.peers.tracking import ExpertsHeld, TrackerClient
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages.experts import RunExperts
from swarm.wire.messages.tracker import Contact, ExpertHolder

ROOT = bytes(32)


@dataclass(frozen=True)
class DonorPlan:
    """A donor process. `empty`: experts that compute nothing. Slow calls are delayed before they run."""

    config: Mapping[str, Any]
    weights: str = "q8"
    empty: bool = False
    slow_share: float = 0.0
    slow_s: float = 0.0
    threads: int | None = None


class EmptyExperts:
    """A bank whose experts give zeros at once: what is left is the way there and back."""

    def __init__(self, bank: ExpertBank) -> None:
        self.layout = bank.layout
        self.shape = bank.shape
        self.resident = bank.resident
        self.streams = False

    def run(self, layer: int, rows: Rows | np.ndarray[Any, Any], expert: I32, row: I32) -> ExpertRows:
        """Zeros of the right form."""
        shape = self.shape(layer)
        groups = -(-shape.hidden // 32) if shape.integer else 0
        values = np.zeros((len(expert), shape.hidden), np.int16 if shape.integer else np.float32)
        return ExpertRows(values, np.zeros((len(expert), groups), np.float32))


async def donate(plan: DonorPlan) -> None:
    """A donor with all experts of a made-up model; ends when its input does.

    It tells where it listens, and then of each connection whether TCP_NODELAY is set.
    """

    async def look(peer: rpc.Peer) -> None:
        tell(no_delay=peer.no_delay)

    set_threads(plan.threads)
    bank = open_experts(SyntheticSource(plan.config), cast(Any, plan.weights), None)
    if not plan.empty:
        bank.preload()
        warm(bank, list(bank.layout.all()))
    keys = KeyPair.generate()
    executor = Executor(keys)
    experts = cast(ExpertBank, EmptyExperts(bank)) if plan.empty else bank
    executor.add(whole_bank(profile_of(ROOT, plan.weights), experts, layout_of(bank)))
    handlers = dict(executor.handlers())
    if plan.slow_share:
        handlers |= {
            kind: _slow(handler, plan) for kind, handler in handlers.items() if issubclass(kind, RunExperts)
        }
    listeners = await rpc.listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        serve = partial(rpc.serve, listeners, keys, handlers, on_peer=look)
        (address,) = await nursery.start(serve)
        tell(port=address.port, key=keys.key.hex())
        await until_let_go(nursery)


def _slow(handler: rpc.Handler, plan: DonorPlan) -> rpc.Handler:
    luck = random.Random(1)

    async def slowed(caller: rpc.Peer, message: RunExperts, payload: rpc.Buffer) -> Any:
        if luck.random() < plan.slow_share:
            await trio.sleep(plan.slow_s)
        return await handler(caller, message, payload)

    return slowed


@dataclass(frozen=True)
class Place:
    """Where a donor listens."""

    port: int
    key: PeerKey
    process: Helper | None = None
    """Its process, where that can be spoken to."""


@contextmanager
def donor(plan: DonorPlan) -> Iterator[Place]:
    """A donor process for the length of a block."""
    told = json.dumps({**vars(plan), "config": dict(plan.config)})
    with helper(__name__, told) as process:
        yield Place(process.told["port"], PeerKey(bytes.fromhex(process.told["key"])), process)


class FixedList:
    """Donors that are known beforehand, in place of a tracker."""

    def __init__(self, places: Collection[Place], total: int) -> None:
        self._places = places
        self._total = total

    async def executors(
        self, root: bytes, profile: bytes, wanted: IndexSet | None, expert_count: int
    ) -> tuple[ExpertsHeld, ...]:
        """All of them, each with everything in memory."""
        everything = IndexSet.full(self._total)
        return tuple(
            ExpertsHeld(
                ExpertHolder(Contact(place.key, "127.0.0.1", place.port, False), False, 0, 0, 1, 1),
                everything,
                everything,
            )
            for place in self._places
        )


@asynccontextmanager
async def asking(bank: ExpertBank, places: Collection[Place], rules: Rules) -> AsyncIterator[RemoteExperts]:
    """Experts on these donors."""

    def convicted(conviction: Conviction) -> None:
        raise RuntimeError(f"an honest donor was convicted: {conviction.reason}")

    async with trio.open_nursery() as nursery:
        keys, layout = KeyPair.generate(), layout_of(bank)
        tracker = TrackerClient(cast(Any, None), Address("127.0.0.1", 1), None)
        doors = Doors(nursery, keys, tracker)
        listed, profile = FixedList(places, layout.total), profile_of(ROOT, bank.weights)
        pool = await nursery.start(keep_pool, listed, doors, profile, layout)
        yield RemoteExperts(pool, bank, rules, convicted)
        nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Times:
    """Milliseconds of many rounds."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Times":
        """Their percentiles."""
        ordered = sorted(seconds)

        def at(share: float) -> float:
            return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

        return cls(len(ordered), at(0.5), at(0.95), at(0.99))


def empty_round(config: Mapping[str, Any], rounds: int = 2000) -> Times:
    """Rounds of one row with experts that compute nothing: the way to one donor process and back."""
    bank = open_experts(SyntheticSource(config), "q8")
    with donor(DonorPlan(config, empty=True)) as place, NetworkThread() as network:
        experts = network.enter(asking, bank, [place], Rules(None, 0.0))
        return Times.of(_rounds(experts, config, rounds))


def hedging(config: Mapping[str, Any], rounds: int, slow_share: float, slow_s: float) -> dict[str, Times]:
    """Rounds over two donors that each delay some of their calls, without and with hedging."""
    bank = open_experts(SyntheticSource(config), "q8")
    plan = DonorPlan(config, empty=True, slow_share=slow_share, slow_s=slow_s)
    found = {}
    with donor(plan) as first, donor(plan) as second, NetworkThread() as network:
        for name, rules in (
            ("off", Rules.parse("off", 0.0)),
            ("10 ms", Rules(0.01, 0.0)),
            ("auto", Rules(None, 0.0)),
        ):
            experts = network.enter(asking, bank, [first, second], rules)
            found[name] = Times.of(_rounds(experts, config, rounds))
    return found


def _rounds(experts: RemoteExperts, config: Mapping[str, Any], rounds: int) -> list[float]:
    luck = np.random.default_rng(0)
    k, hidden, number = config["num_experts_per_tok"], config["hidden_size"], config["num_experts"]
    row = luck.standard_normal((1, hidden)).astype(np.float32)
    weights = np.full((1, k), 1 / k, np.float32)
    taken: list[float] = []

    def ask() -> F32:
        """The rounds of a pass."""
        out = row
        for layer in range(config["num_hidden_layers"]):
            ids = luck.choice(number, (1, k), replace=False).astype(np.int32)
            started = time.perf_counter()
            out = experts.begin(layer, row, ids, weights)()
            taken.append(time.perf_counter() - started)
        return out

    while len(taken) < rounds + 100:
        experts.run_pass(1, ask)
    return taken[100 : rounds + 100]


@dataclass(frozen=True)
class Speeds:
    """Tokens a second, medians of turns taken one after the other."""

    local: float
    remote: float
    local_runs: tuple[float, ...]
    remote_runs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The remote share of the local speed: the median of each turn's own."""
        return statistics.median(r / l for r, l in zip(self.remote_runs, self.local_runs, strict=True))


def overhead(engine: Engine, config: Mapping[str, Any], tokens: int, runs: int) -> Speeds:
    """Decoding with local experts and with one donor process that shares this machine, in turns."""
    with local_decoding(config) as local, donor(DonorPlan(config)) as place, NetworkThread() as network:
        remote = network.enter(asking, engine.bank, [place], Rules(None, 0.0))
        here, there = [], []
        for run in range(runs + 1):
            a, b = local(tokens), decode_speed(engine, remote, tokens)
            if run:
                here.append(a)
                there.append(b)
    return Speeds(statistics.median(here), statistics.median(there), tuple(here), tuple(there))


def delayed(
    engine: Engine, config: Mapping[str, Any], round_trips_s: list[float], tokens: int
) -> list[dict[str, float]]:
    """Decoding behind a proxy that adds a round trip, beside 1 / (layers × round trip + local compute)."""
    found = []
    layers = config["num_hidden_layers"]
    with local_decoding(config) as local:
        local_s = 1 / statistics.median(local(tokens) for _ in range(3))
    with donor(DonorPlan(config)) as place, ExitStack() as proxies, NetworkThread() as network:
        for round_trip_s in round_trips_s:
            port = proxies.enter_context(distance(place.port, round_trip_s))
            remote = network.enter(asking, engine.bank, [Place(port, place.key)], Rules(None, 0.0))
            decode_speed(engine, remote, 4)
            speed = decode_speed(engine, remote, tokens)
            bound = 1 / (layers * round_trip_s + local_s)
            found.append(
                {
                    "round_trip_ms": 1000 * round_trip_s,
                    "tokens_per_s": speed,
                    "bound": bound,
                    "share": speed / bound,
                }
            )
    return found


if __name__ == "__main__":
    trio.run(donate, DonorPlan(**json.loads(sys.argv[1])))
