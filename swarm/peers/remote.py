"""Experts on peers, as the engine asks for them: the bridge between its passes and trio.

`RemoteExperts` is called by a pass, wherever `Passes` lets it run. It rounds the rows as local experts would, hands
the layer's pairs to a `Round` in the trio thread, runs meanwhile what is to run here, and sums in the router's order
when the last output is there. Nothing else crosses the threads.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from engine.arrays import F32, I32, Array, aligned
from engine.doubts import Doubts
from engine.errors import EngineError
from engine.expert_bank import ExpertBank
from engine.kernels import ExpertRows, Rows, combine, quantize_rows
from swarm.peers.audit import Auditor, Conviction, Recomputer
from swarm.peers.calls import Form, Work
from swarm.peers.here import Here
from swarm.peers.keeper import Keeper
from swarm.peers.network import NetworkClosed
from swarm.peers.passes import Done, Passes
from swarm.peers.pool import Pool
from swarm.peers.rounds import Round
from swarm.peers.tale import Tale


@dataclass(frozen=True, slots=True)
class Rules:
    """How donors are asked."""

    hedge_s: float | None = None
    """When a call is late; None: adaptive; inf: never."""
    audit: float = 0.05
    """Share of answers that are checked."""
    keep: bool = False
    """Whether experts that are asked for often may be kept and run here."""
    fetch: bool = False
    """Whether the bytes of experts that were asked for are fetched behind the reply, so that the same can be
    answered again when nobody is there."""
    draft: bool = True
    """Whether tokens may be guessed and asked for along with the newest."""

    @classmethod
    def parse(
        cls, hedge: str, audit: float, keep: bool = False, fetch: bool = False, draft: bool = True
    ) -> "Rules":
        """From what a user types: auto, off, or milliseconds. ValueError."""
        if hedge == "auto":
            return cls(None, audit, keep, fetch, draft)
        if hedge == "off":
            return cls(math.inf, audit, keep, fetch, draft)
        after_ms = float(hedge)
        if not 0 <= after_ms < 1e6:
            raise ValueError(f"{hedge} ms is no time to hedge after")
        return cls(after_ms / 1000, audit, keep, fetch, draft)


@dataclass(slots=True)
class RemoteStats:
    """What a reply, or a whole session, took."""

    rounds: int = 0
    calls: int = 0
    """(expert, row) pairs, wherever they ran."""
    remote_calls: int = 0
    requests: int = 0
    hedges: int = 0
    hedges_won: int = 0
    failovers: int = 0
    wait_s: float = 0.0
    """Time in which the compute thread had nothing to do but wait for the slowest donor."""
    by_donor: dict[str, int] = field(default_factory=dict)
    """Pairs by donor, of the answers that were used."""

    def add(self, pairs: int, tale: Tale, wait_s: float) -> None:
        """Takes in a round."""
        self.rounds += 1
        self.calls += pairs
        self.hedges += tale.hedges
        self.hedges_won += tale.hedges_won
        self.failovers += tale.failovers
        self.wait_s += wait_s
        self.requests += len(tale.hops)
        for hop in tale.hops:
            if hop.outcome == "used":
                self.remote_calls += hop.pairs
                self.by_donor[hop.donor] = self.by_donor.get(hop.donor, 0) + hop.pairs


Tell = Callable[[int, int, int, float, Tale], None]
"""Told of each round: layer, rows, pairs that ran here by choice, milliseconds, what happened."""


Finish: TypeAlias = Callable[[], tuple[ExpertRows, Tale, float]]
"""Waits for a layer's outputs: gives them, what happened, and the seconds of mere waiting."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A layer under way."""

    work: Work
    mine: Array | None
    """The pairs that run here by choice, bool [P]; None: there was no choice."""
    finish: Finish


class RemoteExperts:
    """See `engine.experts.Experts`; made in the trio thread, called in passes."""

    def __init__(
        self,
        pool: Pool,
        bank: ExpertBank,
        rules: Rules,
        report: Callable[[Conviction], None],
        luck: random.Random | None = None,
    ) -> None:
        """`report` is told of donors that lied; `luck` is for tests."""
        self.pool = pool
        self.bank = bank
        self.stats = RemoteStats()
        self.tell: Tell | None = None
        self._passes = Passes(pool.nursery)
        self._forms = {layer: Form.of(bank.shape(layer)) for layer in bank.layout.layers}
        self._here = Here(bank)
        recompute = Recomputer(self._here.run, self._at_hand, self._forms.__getitem__)
        self.auditor = Auditor(rules.audit, pool, recompute, report, luck)
        self._rules = rules
        self._keeper = Keeper(bank)
        per_layer = bank.layout.experts_per_layer
        self._fetched = {layer: np.zeros(per_layer, np.bool_) for layer in bank.layout.layers}

    @property
    def rules(self) -> Rules:
        """How donors are asked; replace it to change that from the next layer on."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules, self.auditor.share = rules, rules.audit

    @property
    def doubts(self) -> Doubts:
        """The passes that donors convicted since took part in."""
        return self.auditor.doubts

    @property
    def looks_ahead(self) -> bool:
        """Whether guesses help: when experts run here and are not all in memory."""
        return self.bank.streams and not self.pool.remotes and not self._passes.inside

    @property
    def far(self) -> bool:
        """See `engine.experts.Experts`."""
        return self._rules.draft and self.pool.usable_now()

    def transferred(self) -> tuple[int, int]:
        """Bytes sent to donors and received from them on connections for experts, encryption and all."""
        both = [remote.transferred() for remote in list(self.pool.remotes.values())]
        return sum(sent for sent, _ in both), sum(received for _, received in both)

    def local_bank(self) -> None:
        """See `engine.experts.Experts`."""

    def prefetch(self, layer: int, ids: I32) -> None:
        """See `engine.experts.Experts`."""
        self.bank.prefetch(layer, ids.reshape(-1).tolist())

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        return self._passes.run(rows, work, only_donors=self.pool.usable_now() and not self._rules.keep)

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        """See `engine.experts.Experts`. Donors are asked before this returns, or soon after."""
        started = time.perf_counter()
        count, k = ids.shape
        form = self._forms[layer]
        packed: Rows | F32 = quantize_rows(rows) if form.integer else np.ascontiguousarray(rows)
        expert = ids.reshape(-1).astype(np.int32, copy=False)
        work = Work(layer, expert, np.repeat(np.arange(count, dtype=np.int32), k), packed)
        if not self.pool.usable_now():
            self._passes.soon(self.pool.want)
            asked = _Asked(work, None, self._all_here(work))
        else:
            keeps = self._rules.keep and not self._passes.inside
            mine = self._keeper.choose(layer, expert) if keeps else None
            asked = _Asked(
                work, mine, self._ask(form, work, mine if mine is not None and mine.any() else None)
            )
        return partial(self._sum, asked, weights, started)

    def _sum(self, asked: _Asked, weights: F32, started: float) -> F32:
        """What a layer's experts gave, once all of it is there."""
        outputs, tale, wait_s = asked.finish()
        took_s = time.perf_counter() - started
        work, count = asked.work, len(weights)
        kept = 0 if asked.mine is None else int(asked.mine.sum())
        if asked.mine is not None:
            self._keeper.took(count, kept > 0, took_s)
        self.stats.add(len(work), tale, wait_s)
        if self._rules.fetch:
            self._fetch(work.layer, work.expert)
        if self.tell is not None:
            self.tell(work.layer, count, kept, 1000 * took_s, tale)
        return combine(outputs, weights)

    def _fetch(self, layer: int, expert: I32) -> None:
        """Has the bytes of experts that were not asked for before fetched when there is nothing more urgent."""
        fetched = self._fetched[layer]
        fresh = np.unique(expert[(expert >= 0) & ~fetched[expert]])
        if len(fresh):
            fetched[fresh] = True
            wanted = [(layer, number) for number in fresh.tolist()]
            self._passes.elsewhere(partial(self.bank.reader.announce, wanted))

    def _all_here(self, work: Work) -> Finish:
        """Runs all of a layer here: nobody can be asked."""

        def finish() -> tuple[ExpertRows, Tale, float]:
            return self._passes.elsewhere(partial(self._here.run, work)), Tale(local_pairs=len(work)), 0.0

        return finish

    def _ask(self, form: Form, work: Work, mine: Array | None) -> Finish:
        """Asks donors; the pairs in `mine`, bool [P], run here while they are waited for."""
        pairs = len(work)
        kind = np.int16 if form.integer else np.float32
        out = ExpertRows(
            aligned((pairs, form.hidden), kind),
            aligned((pairs, form.groups if form.integer else 0), np.float32),
        )
        theirs = np.arange(pairs) if mine is None else np.flatnonzero(~mine)
        round_ = Round(self.pool, self.auditor, form, work, out, self._here, self._rules.hedge_s)
        wait = self._passes.ask(partial(self._begin, round_, theirs))

        def finish() -> tuple[ExpertRows, Tale, float]:
            try:
                if mine is not None:
                    self._run_here(work, np.flatnonzero(mine), out)
                started = time.perf_counter()
                wait()
            except (KeyboardInterrupt, EngineError):
                self._passes.soon(round_.cancel)
                raise
            return out, round_.tale, time.perf_counter() - started

        return finish

    def _begin(self, round_: Round, pairs: Array, done: Done) -> None:
        """In the trio thread."""
        try:
            round_.begin(pairs, done)
        except RuntimeError:  # the swarm was left, and its nursery takes no more tasks
            round_.cancel()
            done(NetworkClosed())

    def _run_here(self, work: Work, pairs: Array, out: ExpertRows) -> None:
        found = self._here.run(Work(work.layer, work.expert[pairs], work.row[pairs], work.rows))
        out.values[pairs] = found.values
        if out.integer:
            out.scale[pairs] = found.scale

    def _at_hand(self, work: Work) -> bool:
        """Whether all experts of a piece of work are in this process's memory."""
        return self._here.holds_all(work.layer, set(work.expert.tolist()))
