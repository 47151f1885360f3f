"""What a donor costs that freezes in the middle of a reply: `swarm bench swarm --part frozen`.

One of two donor processes is stopped by SIGSTOP between two tokens and let go on by SIGCONT later: its connection
stays open all the while, and nothing comes over it.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.cache import State
from engine.doubts import forward
from engine.engine import Engine
from engine.models import Segment
from swarm.peers.bench import DonorPlan, Place, asking, donor
from swarm.peers.network import NetworkThread
from swarm.peers.remote import RemoteExperts, Rules
from swarm.peers.tale import Tale

HEDGES = ("off", "auto")
BACK_S = 10.0
"""How long a donor that goes on is given to be asked again."""


@dataclass(frozen=True)
class Frozen:
    """One reply. Requests are those to the donor that was stopped."""

    hedge: str
    token_ms: float
    """The median of a token before."""
    stopped_token_ms: float
    """The median of a token while it was stopped: hedges that are late in every layer show here."""
    deadline_ms: float
    """How long a call of a token's layer might take at most when it was stopped."""
    lost_ms: float
    """What those tokens took beyond their median."""
    worst_ms: float
    """The slowest of them."""
    requests: int
    """While it was stopped."""
    requests_later: int
    """Of these, the ones for later tokens than the first."""
    back_ms: float | None
    """From SIGCONT until it was asked again; None when it was not in time."""


def freezing(engine: Engine, config: Mapping[str, Any], tokens: int) -> list[Frozen]:
    """Replies of so many tokens before a donor is stopped and as many while it is, without and with hedging."""
    plan = DonorPlan(config)
    with donor(plan) as first, donor(plan) as second:
        pairs = config["num_experts_per_tok"]
        return [_reply(engine, first, second, hedge, tokens, pairs) for hedge in HEDGES]


class _Reader:
    """Reads tokens one by one; counts the requests to one donor."""

    def __init__(self, engine: Engine, remote: RemoteExperts, donor_name: str) -> None:
        self.requests = 0
        self._engine, self._remote, self._name = engine, remote, donor_name
        self._state: State = engine.model.new_state()
        self._luck = random.Random(0)
        remote.tell = self._told

    def _told(self, layer: int, rows: int, kept: int, ms: float, tale: Tale) -> None:
        self.requests += sum(hop.donor == self._name for hop in tale.hops)

    def token(self) -> float:
        """One token; the seconds it took."""
        started = time.perf_counter()
        forward(
            self._engine.model,
            [Segment(self._state, [self._luck.randrange(self._engine.model.vocab_size)])],
            self._remote,
        )
        return time.perf_counter() - started


def _reply(engine: Engine, first: Place, second: Place, hedge: str, tokens: int, pairs: int) -> Frozen:
    """The first donor is stopped. It is met by a chatter of its own, who knows nothing of earlier replies."""
    with NetworkThread() as network:
        remote = network.enter(asking, engine.bank, [first, second], Rules.parse(hedge, 0.0))
        to_stop = remote.pool.remotes[first.key]
        reader = _Reader(engine, remote, to_stop.name)
        before = [reader.token() for _ in range(2 * tokens)][tokens:]
        asked, deadline_s = reader.requests, to_stop.deadline_s(pairs, alone=False)
        with _stopped(first):
            during = [reader.token()]
            at_first = reader.requests - asked
            during += [reader.token() for _ in range(tokens - 1)]
            requests = reader.requests - asked
        return Frozen(
            hedge,
            1000 * statistics.median(before),
            1000 * statistics.median(during),
            1000 * deadline_s,
            1000 * (sum(during) - len(during) * statistics.median(during)),
            1000 * max(during),
            requests,
            requests - at_first,
            _back_ms(reader),
        )


@contextmanager
def _stopped(place: Place) -> Iterator[None]:
    assert place.process is not None
    os.kill(place.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(place.process.pid, signal.SIGCONT)


def _back_ms(reader: _Reader) -> float | None:
    started, asked = time.perf_counter(), reader.requests
    while time.perf_counter() - started < BACK_S:
        reader.token()
        if reader.requests > asked:
            return 1000 * (time.perf_counter() - started)
    return None
