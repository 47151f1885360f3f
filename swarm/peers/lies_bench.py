"""How soon audits find liars, by simulation with seeds: `swarm bench swarm --part lies`.

Four replicas answer made-up calls, some of them wrongly; the auditor, its luck's seed aside, and the signatures are
those of a swarm. Each replica answers a quarter of the calls. A lie comes to light when it is audited, or when its
teller is asked for a second opinion: that happens to each of the three others in a third of the audits that are not
made here alone. So the calls until one liar is found are geometric, with the chance a call of
share · rate · (1 + (1 - LOCAL_SHARE)) / 4. Where all lie alike, only audits made here find them: share · LOCAL_SHARE.
"""

import math
import random
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import trio

from engine.kernels import ExpertRows, quantize_rows
from swarm.peers.audit import LOCAL_SHARE, Auditor, Conviction, Recomputer
from swarm.peers.calls import UNSIGNED, Form, Work, encode_call, encode_outputs
from swarm.peers.partner import Answer, Remote
from swarm.trust.profile import NumericProfile
from swarm.trust.receipts import give_receipt, reply_digest, request_digest
from swarm.wire.holdings import ExpertLayout
from swarm.wire.keys import KeyPair
from swarm.wire.messages.tracker import Contact

REPLICAS = 4
RATES = (0.01, 0.1, 1.0)
FORM = Form(32, True)
PROFILE = NumericProfile(1, b"\7" * 32, "auto")
WORK = Work(0, np.zeros(1, np.int32), np.zeros(1, np.int32), quantize_rows(np.ones((1, 32), np.float32)))
RIGHT = ExpertRows(np.ones((1, 32), np.int16), np.ones((1, 1), np.float32))
WRONG = ExpertRows(np.full((1, 32), 2, np.int16), np.ones((1, 1), np.float32))
REQUEST = encode_call(FORM, 1, WORK, np.arange(1))
KEYS = [KeyPair(bytes([number + 1]) * 32) for number in range(REPLICAS)]


@dataclass
class Replicas:
    """A pool of donors that all hold everything."""

    profile: NumericProfile
    remotes: list[Remote]
    nursery: trio.Nursery | None = None
    banned: list[Remote] = field(default_factory=list)

    def usable(self, without: tuple[Remote, ...] = ()) -> list[Remote]:
        """See `Pool`."""
        return [remote for remote in self.remotes if remote not in without and not remote.banned]

    def ban(self, remote: Remote, reason: str) -> None:
        """See `Pool`."""
        remote.banned = reason
        self.banned.append(remote)


class Replica(Remote):
    """A donor that holds everything."""

    def holds_all(self, layer: int, experts: Collection[int]) -> bool:
        """It does."""
        return True


class Immediate(Recomputer):
    """Recomputes without a thread, for speed."""

    async def __call__(self, work: Work) -> ExpertRows:
        """See `Recomputer`."""
        return self._run(work)


def replica(number: int) -> Replica:
    """The replica with a number."""
    return Replica(Contact(KEYS[number].key, "", 0, False), ExpertLayout((8,)))


def answer(of: Remote, outputs: ExpertRows) -> Answer:
    """What a replica says, signed."""
    message, request = REQUEST
    reply = encode_outputs(outputs)
    receipt = give_receipt(
        next(keys for keys in KEYS if keys.key == of.key),
        profile=PROFILE.digest,
        request=request_digest(message, request),
        reply=reply_digest(UNSIGNED, reply),
    )
    return Answer(of, WORK, message, request, outputs, reply, receipt.signature, 0.001)


class Simulation:
    """Calls spread over the replicas; those in `liars` lie at a rate, all in the same words."""

    def __init__(self, seed: int, share: float, rate: float, liars: Collection[int]) -> None:
        """share: of calls, those audited. rate: of a liar's answers, those that are wrong."""
        self.luck = random.Random(seed)
        self.rate, self.liars = rate, liars
        self.remotes: list[Remote] = [replica(number) for number in range(REPLICAS)]
        self.pool = Replicas(PROFILE, self.remotes)
        self.convictions: list[Conviction] = []
        recompute = Immediate(lambda work: RIGHT, lambda work: True, lambda layer: FORM)
        self.auditor = Auditor(
            share, cast(Any, self.pool), recompute, self.convictions.append, random.Random(f"audits {seed}")
        )
        self._said: dict[tuple[Remote, bool], Answer] = {}

    async def ask(self, other: Remote) -> Answer:
        """What a replica says to a call."""
        lies = self.remotes.index(other) in self.liars and self.luck.random() < self.rate
        said = self._said.get((other, lies))
        if said is None:
            said = self._said[other, lies] = answer(other, WRONG if lies else RIGHT)
        return said

    async def call(self) -> None:
        """One call of a replica, audited if that is drawn."""
        said = await self.ask(self.luck.choice(self.pool.usable()))
        if self.auditor.draws():
            await self.auditor.check(said, 1, self.ask)

    async def until(self, convictions: int) -> int:
        """The calls until so many are convicted."""
        calls = 0
        while len(self.convictions) < convictions:
            await self.call()
            calls += 1
        return calls


@dataclass(frozen=True)
class Found:
    """Calls until liars are found: the mean over seeds, beside what the share of audits implies."""

    calls: float
    implied: float
    allowed: float
    """Three standard deviations of the mean."""

    @classmethod
    def of(cls, counts: Sequence[int], chances: Sequence[float]) -> "Found":
        """`chances`: of each conviction that was waited for, a call."""
        variance = sum((1 - chance) / chance**2 for chance in chances)
        deviation = math.sqrt(variance / len(counts))
        return cls(statistics.mean(counts), sum(1 / chance for chance in chances), 3 * deviation)

    @property
    def within(self) -> bool:
        """Whether the mean is as near as luck allows."""
        return abs(self.calls - self.implied) <= self.allowed


@dataclass(frozen=True)
class Lies:
    """All figures."""

    share: float
    seeds: int
    one: dict[float, Found]
    """One liar among the replicas, by the share of its answers that are wrong."""
    wrongly_accused: int
    """Convictions of others than the liars."""
    all_first: Found
    """All lie alike: the first that is found, …"""
    all_but_one: Found
    """… and the last but one."""
    honest_calls: int
    honest_audits: int
    honest_banned: int
    """Donors banned in the calls of which none was answered wrongly."""


async def measure(share: float, seeds: int, honest_calls: int) -> Lies:
    """Runs each kind with so many seeds, and the honest calls once."""
    one, wrongly_accused = {}, 0
    for rate in RATES:
        counts = []
        for seed in range(seeds):
            simulation = Simulation(seed, share, rate, {seed % REPLICAS})
            counts.append(await simulation.until(1))
            liar = simulation.remotes[seed % REPLICAS]
            wrongly_accused += sum(conviction.donor is not liar for conviction in simulation.convictions)
        one[rate] = Found.of(counts, [share * rate * (2 - LOCAL_SHARE) / REPLICAS])
    first, last = [], []
    for seed in range(seeds):
        simulation = Simulation(seed, share, 1.0, range(REPLICAS))
        first.append(await simulation.until(1))
        last.append(first[-1] + await simulation.until(REPLICAS - 1))
    chance = share * LOCAL_SHARE
    simulation = Simulation(0, share, 0.0, ())
    for _ in range(honest_calls):
        await simulation.call()
    return Lies(
        share,
        seeds,
        one,
        wrongly_accused,
        Found.of(first, [chance]),
        Found.of(last, [chance] * (REPLICAS - 1)),
        honest_calls,
        simulation.auditor.audits.drawn,
        len(simulation.pool.banned),
    )
