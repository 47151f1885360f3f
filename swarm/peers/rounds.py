"""One layer's round: every donor that is needed is asked at once, late ones are hedged, failed ones replaced.

The pairs of the layer are divided into shares, each asked of one donor at a time, or two while hedging.

1. `choose` places the experts on donors; all requests leave before any reply is read.
2. A share whose donor is late, by what it took before or by what it would take elsewhere, is also asked of another
   that holds all of it, or run here where all of it is in memory; the first outputs count.
3. A share whose donor failed, froze or was busy is divided again among those not tried yet. When there are
   none, the tracker is asked, once a round; then whoever was busy is waited for; then it runs here.

Every wait has a deadline, so a round ends; and whoever answers, the outputs are the same bits.

When all goes well a round needs no task and no switch between tasks: requests leave as they are made, and
the task that reads a connection passes the last output on. Only what has to wait (a long request or reply, an
audit, a failure) gets a task; deadlines are kept by the pool's `Watch`.
"""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import trio

from engine.arrays import Array
from engine.errors import EngineError
from engine.kernels import ExpertRows
from swarm.errors import SwarmError
from swarm.peers.audit import Auditor, Checked
from swarm.peers.calls import Form, Work, pieces
from swarm.peers.choice import choose
from swarm.peers.here import Here
from swarm.peers.network import NetworkClosed
from swarm.peers.partner import Answer, Remote
from swarm.peers.pool import Pool, Proof
from swarm.peers.shares import Attempt, Share
from swarm.peers.tale import Cause, Hop, Tale

FIRST_HEDGE_S = 0.25
"""When to see whether a call would be quicker elsewhere, and when it is late while nothing was measured."""
MOST_WAITS = 8
"""How often one share waits for donors that are busy before it runs here."""
MOST_WAIT_S = 0.5
ASK_TRACKER_S = 3.0


class Round:
    """Gets the outputs of some pairs from donors into arrays of the caller's."""

    def __init__(
        self,
        pool: Pool,
        auditor: Auditor,
        form: Form,
        work: Work,
        out: ExpertRows,
        here: Here,
        hedge_s: float | None,
    ) -> None:
        """`out` takes the outputs of all pairs; `here` runs pairs in this process.

        hedge_s: when a call is late; None: when its donor usually has answered, or others would have; inf: never.
        """
        self._pool = pool
        self._auditor = auditor
        self._pass = auditor.doubts.current
        self._form = form
        self._work = work
        self._out = out
        self._here = here
        self._hedge_s = hedge_s
        self._missing = 0
        self._shares: list[Share] = []
        self._done: Callable[[Exception | None], None] | None = None
        self.tale = Tale()

    def begin(self, pairs: Array, done: Callable[[Exception | None], None]) -> None:
        """Asks for the outputs of these pairs; returns at once.

        `done` is called when all are there, or with the reason why they can be had from nowhere. Requests
        leave and the last output is passed on without waiting for the turn of a task of the round's own.
        """
        self._done = done
        if len(pairs):
            self._pool.watch.add(self)
            self._place(pairs, set(), "first", 0)
        else:
            self._end(None)

    def cancel(self) -> None:
        """Takes back everything; `done` is not called any more."""
        self._done = None
        self._end(None)

    def leave(self) -> None:
        """See `Watched`. Takes back all that runs, also what is only waited for to be compared or timed."""
        self._end(NetworkClosed())
        for share in self._shares:
            share.take_back()

    def tend(self, now: float) -> float:
        """See `Watched`: gives up what is overdue, hedges what is late."""
        for share in list(self._shares):
            for attempt in [one for one in share.running.values() if one.is_open and one.deadline <= now]:
                attempt.cancel()
                attempt.hop.outcome = "late"
                self._pool.froze(attempt.remote, self._proof(attempt.remote, self._work.part(share.pairs)))
                self._give_up(share, attempt)
        if self._done is not None:
            self._hedge(now)
        times = [share.late_at for share in self._shares if not share.done]
        times += [one.deadline for share in self._shares for one in share.running.values() if one.is_open]
        if self._done is None and not times:
            self._pool.watch.remove(self)
        return min(times, default=math.inf)

    def _end(self, error: Exception | None) -> None:
        """The round is over; said once."""
        done, self._done = self._done, None
        for share in self._shares:
            share.take_back(but_for_awaited=True)
        if not any(share.is_awaited for share in self._shares):
            self._pool.watch.remove(self)
        if done is not None:
            done(error)

    def _filled(self, share: Share, outputs: ExpertRows) -> None:
        """A share's outputs are there."""
        share.done = True
        self._out.values[share.pairs] = outputs.values
        if self._form.integer:
            self._out.scale[share.pairs] = outputs.scale
        self._missing -= 1
        if not self._missing:
            self._end(None)

    # ---------------------------------------------------------------- placing

    def _place(self, pairs: Array, tried: set[Remote], cause: Cause, waits: int) -> None:
        """Divides pairs among donors that were not tried, and asks; what nobody holds is pursued further."""
        layer, expert = self._work.layer, self._work.expert[pairs]
        remotes = self._pool.usable(without=tried)
        here = self._here.candidate(layer, expert.tolist()) if remotes and self._here.pace.measured else None
        if here is None and len(remotes) == 1 and self._form.is_one_call(len(pairs), len(self._work.rows)):
            share = self._share(pairs, tried, waits)
            if remotes[0].holds_all(layer, share.experts):
                self._start(share, remotes[0], cause)
                return
            self._shares.remove(share)
            self._missing -= 1
        candidates = [remote.candidate(layer) for remote in remotes]
        if here is not None:
            candidates.append(here)
        wanted = sorted(Counter(expert.tolist()).items())
        placed, nobody = choose(wanted, candidates, next(self._pool.turn))
        for place, experts in placed.items():
            mine = pairs if len(experts) == len(wanted) else pairs[np.isin(expert, experts)]
            if place == len(remotes):
                self._run_here(self._share(mine, tried, waits))
                continue
            for piece in pieces(self._form, self._work.part(mine)):
                self._start(self._share(mine[piece], tried, waits), remotes[place], cause)
        if nobody:
            share = self._share(pairs[np.isin(expert, nobody)], tried, waits)
            self._pool.nursery.start_soon(self._pursue, share)

    def _share(self, pairs: Array, tried: set[Remote], waits: int) -> Share:
        share = Share(pairs, frozenset(self._work.expert[pairs].tolist()), set(tried), waits)
        self._shares.append(share)
        self._missing += 1
        return share

    def _start(self, share: Share, remote: Remote, cause: Cause) -> None:
        now, pairs = trio.current_time(), len(share.pairs)
        share.tried.add(remote)
        alone = remote.pace.measured or self._elsewhere(share) is None
        attempt = Attempt(remote, Hop(remote.name, pairs, cause), now, now + remote.deadline_s(pairs, alone))
        self.tale.hops.append(attempt.hop)
        share.running[remote] = attempt
        if cause != "hedge":
            late_s = remote.late_s(pairs) if self._hedge_s is None else self._hedge_s
            look_s = FIRST_HEDGE_S if self._hedge_s is None else late_s
            share.started, share.hedge_at, share.late_at = now, now + late_s, now + min(late_s, look_s)
        with suppress(SwarmError):  # the task meets it again
            attempt.call = remote.call(
                self._form, self._work, share.pairs, partial(self._told, share, attempt)
            )
        if attempt.call is None:
            self._in_a_task(share, attempt)
        elif not attempt.call.peer.is_open:  # it was lost while it was sent
            self._told(share, attempt)
        self._pool.watch.wake_at(min(share.late_at, attempt.deadline))

    def _hedge(self, now: float) -> None:
        """Has every share that is late computed elsewhere as well."""
        for share in [share for share in self._shares if not share.done and share.late_at <= now]:
            share.late_at = math.inf
            other = self._elsewhere(share)
            if other is None:
                continue
            if self._hedge_s is None and share.due_at(other) > now:
                share.late_at = share.due_at(other)
                continue
            self.tale.hedges += 1
            if isinstance(other, Here):
                self._run_here(share)
            else:
                self._start(share, other, "hedge")

    def _elsewhere(self, share: Share) -> Remote | Here | None:
        """Where all of a share could be had as well, the quickest; None: nowhere."""
        layer, pairs = self._work.layer, len(share.pairs)
        best = self._pool.quickest(layer, share.experts, pairs, share.tried)
        quick = best is None or self._here.takes_s(pairs) <= best.takes_s(pairs)
        return self._here if quick and self._here.holds_all(layer, share.experts) else best

    def _run_here(self, share: Share) -> None:
        share.here = True
        self._pool.nursery.start_soon(self._compute, share)

    async def _compute(self, share: Share) -> None:
        """Runs a share in this process, beside the donor that is late with it if there is one."""
        started, hedges = trio.current_time(), bool(share.running)
        try:
            outputs = await self._here.outputs(self._work.part(share.pairs))
        except EngineError:
            share.here = False
            if self._done is not None and not share.done and not share.running:
                await self._pursue(share)
            return
        if not share.done:
            self.tale.quicker_pairs += len(share.pairs)
            self.tale.hedges_won += hedges
            share.took_s = trio.current_time() - started
            share.outrun()
            self._filled(share, outputs)

    # ---------------------------------------------------------------- asking

    def _told(self, share: Share, attempt: Attempt) -> None:
        """The reply to a call without a task is there; called where the connection is read."""
        if not attempt.is_open or attempt.call is None:
            return
        try:
            answer = attempt.call.answer()
        except SwarmError as error:
            attempt.timed()
            self._note(share, attempt.remote, error, attempt.hop)
            self._give_up(share, attempt)
            return
        if answer is None:
            self._in_a_task(share, attempt)
        elif share.done or attempt.remote.banned or self._auditor.draws():
            self._pool.nursery.start_soon(self._conclude, share, attempt, answer, not share.done)
        else:
            self._answered(attempt, answer)
            self._use(share, attempt.remote, answer, attempt.hop, Checked(answer.outputs, False))

    def _in_a_task(self, share: Share, attempt: Attempt) -> None:
        attempt.scope = trio.CancelScope(deadline=attempt.deadline)
        self._pool.nursery.start_soon(self._attempt, share, attempt, attempt.scope)

    async def _attempt(self, share: Share, attempt: Attempt, scope: trio.CancelScope) -> None:
        remote, call = attempt.remote, attempt.call
        answer: Answer | None = None
        try:
            with scope:
                asked = remote.ask(self._form, self._work, share.pairs) if call is None else call.opened()
                answer = await asked
        except SwarmError as error:
            self._note(share, remote, error, attempt.hop)
        if answer is None and scope.cancelled_caught and trio.current_time() >= scope.deadline:
            attempt.hop.outcome = "late"
            self._pool.froze(remote, self._proof(remote, self._work.part(share.pairs)))
        drawn = answer is not None and not share.done and not remote.banned and self._auditor.draws()
        await self._conclude(share, attempt, answer, drawn)

    async def _conclude(self, share: Share, attempt: Attempt, answer: Answer | None, drawn: bool) -> None:
        """Uses an answer, after an audit if that was drawn. None, or one worth nothing: others are asked."""
        if answer is not None:
            self._answered(attempt, answer)
            try:
                if await self._take(share, attempt.remote, answer, attempt.hop, drawn):
                    return
            except EngineError as error:
                self._end(error)
                return
            finally:
                share.running.pop(attempt.remote, None)
        else:
            attempt.timed()
        self._give_up(share, attempt)

    def _answered(self, attempt: Attempt, answer: Answer) -> None:
        if not attempt.lingers:
            attempt.remote.pace.observe(len(answer.work), answer.took_s)
        attempt.timed()
        attempt.hop.sent_bytes, attempt.hop.received_bytes = len(answer.request), len(answer.reply)

    def _give_up(self, share: Share, attempt: Attempt) -> None:
        """An attempt came to nothing; others are asked, unless they are already."""
        share.running.pop(attempt.remote, None)
        if self._done is not None and not share.done and not share.running and not share.here:
            self.tale.failovers += attempt.hop.outcome != "busy"
            self._again(share, "failover")

    async def _take(self, share: Share, remote: Remote, answer: Answer, hop: Hop, drawn: bool) -> bool:
        """Uses an answer unless another came first; before that it may be audited. False: it is worth nothing."""
        found = Checked(answer.outputs, False)
        if drawn and not remote.banned:
            hop.outcome = "checked"
            found = await self._auditor.check(answer, self._pass, partial(self._second, answer))
        if share.done:
            self._pool.outrun(remote, answer, share.took_s, self._proof(remote, answer.work))
            if share.compared and share.used is not None:
                await self._auditor.compare(answer, share.used)
            return True
        if not found.certain and remote.banned:  # convicted meanwhile: nothing it says is used
            hop.outcome = "failed"
            return False
        self._use(share, remote, answer, hop, found)
        return True

    def _use(self, share: Share, remote: Remote, answer: Answer, hop: Hop, found: Checked) -> None:
        if not found.certain:
            self._auditor.rely(remote, self._pass)
        share.used, share.took_s = answer, answer.took_s
        self._pool.used(remote)
        hop.outcome = "used"
        if hop.cause == "hedge":
            self.tale.hedges_won += 1
            remote.tally.hedges_won += 1
        share.running.pop(remote, None)
        share.compared = bool(share.running) and self._auditor.draws()
        if not share.compared:
            share.outrun()
        self._filled(share, found.outputs)

    def _proof(self, remote: Remote, work: Work) -> Proof:
        """How a donor can prove that it answers calls: by the first pair of a piece of work."""
        return partial(remote.ask, self._form, work.first(), np.zeros(1, np.intp))

    async def _second(self, answer: Answer, remote: Remote) -> Answer | None:
        """The same call at another donor; None when that one does not answer it either."""
        hop = Hop(remote.name, len(answer.work), "audit")
        self.tale.hops.append(hop)
        started = trio.current_time()
        found: Answer | None = None
        with trio.move_on_after(remote.deadline_s(len(answer.work), alone=False)) as scope:
            try:
                found = await remote.ask(self._form, answer.work, np.arange(len(answer.work)))
                remote.pace.observe(len(found.work), found.took_s)
            except SwarmError as error:
                self._note(None, remote, error, hop)
        if scope.cancelled_caught:
            self._pool.froze(remote, self._proof(remote, answer.work))
        hop.ms, hop.outcome = 1000 * (trio.current_time() - started), "checked" if found else "failed"
        return found

    def _note(self, share: Share | None, remote: Remote, error: SwarmError, hop: Hop) -> None:
        """What an error means for the donor: busy, without these experts, or failing."""
        asked_for = None if share is None else (self._work.layer, share.experts)
        hop.outcome = "busy" if self._pool.refused(remote, error, asked_for) else "failed"
        if hop.outcome == "busy" and share is not None:
            share.tried.discard(remote)

    # ---------------------------------------------------------------- when donors fail

    def _again(self, share: Share, cause: Cause, waited: int = 0) -> None:
        """Divides a share anew."""
        self._missing -= 1
        share.done = True
        self._place(share.pairs, share.tried, cause, share.waits + waited)

    async def _pursue(self, share: Share) -> None:
        """For experts that no donor can be asked for: the tracker, those who were busy, this machine."""
        layer = self._work.layer
        with trio.move_on_after(ASK_TRACKER_S):
            asked = await self._pool.ask_again()
            if asked and self._pool.has_any(layer, share.experts, share.tried):
                self._again(share, "failover")
                return
        if share.waits < MOST_WAITS:
            until = self._pool.busy_until(layer, share.experts)
            if until is not None:
                await trio.sleep(min(max(until - trio.current_time(), 0.0), MOST_WAIT_S))
            if until is not None or self._pool.has_any(layer, share.experts, share.tried):
                self._again(share, "failover", waited=1)
                return
        try:
            outputs = await self._here.outputs(self._work.part(share.pairs))
        except EngineError as error:
            self._end(error)
        else:
            self.tale.local_pairs += len(share.pairs)
            self._filled(share, outputs)
