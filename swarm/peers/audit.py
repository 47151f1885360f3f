"""Audits: a random share of answers is checked against another donor's, or recomputed here.

Whether a call is audited is drawn after its answer came, from the system's cryptographic randomness, so no
donor can know. Where two answers differ, the experts' signed bytes decide: the call is recomputed here, and
whoever gave another answer is named, banned, and reported to the tracker with the proof. A part of the
audits is recomputed here even when a second donor agrees, for donors may collude.

Recomputing needs the experts' bytes. Where they are in memory, or every answer is to be audited, the answer
waits for the check. Else a second donor is asked meanwhile if there is one, and the check is made in the
background, and never skipped: when too many wait, answers wait with them. When the bytes cannot be had, an
answer is used unchecked, which is counted; never so where every answer is to be audited. So are the checks
counted that were not made when the model was left.

Whoever is convicted may have lied before without being audited. So for each donor it is noted in which
forward passes answers of its were used that were not recomputed here; a conviction withdraws those passes
(`engine.doubts`), and what rests on them is computed again without it.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import trio

from engine.doubts import Doubts
from engine.errors import EngineError
from engine.kernels import ExpertRows
from swarm.peers.calls import Form, Work, decode_outputs, encode_outputs
from swarm.peers.partner import Answer, Remote
from swarm.peers.pool import Pool
from swarm.peers.proof import Proof
from swarm.wire.keys import BadSignature

LOCAL_SHARE = 0.125
"""Of the audits, those recomputed here although another donor could be asked."""
BACKLOG = 256
CHECKS_AT_ONCE = 1


@dataclass(frozen=True, slots=True)
class Conviction:
    """A donor that gave a wrong answer."""

    donor: Remote
    layer: int
    reason: str
    proof: Proof | None
    """None when it did not even sign its answer, so that nobody else can be convinced."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Outputs to use, and whether they were recomputed here, so that no donor has to be relied on."""

    outputs: ExpertRows
    certain: bool


@dataclass(slots=True)
class Audits:
    """What was checked."""

    drawn: int = 0
    agreed: int = 0
    recomputed: int = 0
    unchecked: int = 0
    """Checks that were not made: the bytes could not be had, or the model was left first."""
    convictions: list[Conviction] = field(default_factory=list)


class Recomputer:
    """Runs work here, from bytes the operator signed; `ready` tells whether that needs no reading."""

    def __init__(
        self, run: Callable[[Work], ExpertRows], ready: Callable[[Work], bool], form: Callable[[int], Form]
    ) -> None:
        self._run = run
        self.ready = ready
        self.form = form

    async def __call__(self, work: Work) -> ExpertRows:
        """The right outputs. Raises EngineError when the bytes cannot be had."""
        return await trio.to_thread.run_sync(self._run, work)


class Auditor:
    """Draws, checks, convicts. `report` is told of each conviction."""

    def __init__(
        self,
        share: float,
        pool: Pool,
        recompute: Recomputer,
        report: Callable[[Conviction], None],
        luck: random.Random | None = None,
    ) -> None:
        self.share = share
        self.audits = Audits()
        self.doubts = Doubts()
        """The passes that were withdrawn because a donor was convicted."""
        self._helped: dict[Remote, tuple[int, int]] = {}
        """The first and the last pass in which an answer of a donor was relied on."""
        self._pool = pool
        self._recompute = recompute
        self._report = report
        self._luck = luck or random.SystemRandom()
        self._waiting = trio.Semaphore(BACKLOG)
        self._checking = trio.Semaphore(CHECKS_AT_ONCE)
        self._finished = trio.Event()

    def draws(self) -> bool:
        """Whether an answer is audited."""
        return self.share > 0 and self._luck.random() < self.share

    def rely(self, remote: Remote, number: int) -> None:
        """An answer of a donor is used in a pass, and was not recomputed here."""
        first, last = self._helped.get(remote, (number, number))
        self._helped[remote] = min(first, number), max(last, number)

    async def check(
        self, answer: Answer, number: int, ask: Callable[[Remote], Awaitable[Answer | None]]
    ) -> Checked:
        """What to use in pass `number` for an answer that was drawn; `ask` puts the same call to another donor.

        Raises EngineError when the bytes to check it with cannot be had, if it may not be used without.
        """
        self.audits.drawn += 1
        with self._counting():
            return await self._checked(answer, number, ask)

    async def _checked(
        self, answer: Answer, number: int, ask: Callable[[Remote], Awaitable[Answer | None]]
    ) -> Checked:
        here = self._luck.random() < LOCAL_SHARE
        at_once = self.share >= 1 or self._recompute.ready(answer.work)
        others = [] if here and at_once else self._others(answer)
        other = await ask(self._luck.choice(others)) if others else None
        if other is not None and other.reply != answer.reply:
            return await self._settle([answer, other])
        if other is not None and not here:
            self.audits.agreed += 1
        elif at_once:
            return await self._settle([answer])
        else:
            await self._later(answer, number)
        return Checked(answer.outputs, False)

    async def compare(self, answer: Answer, used: Answer) -> None:
        """Checks an answer that was not used (it lost a race) and the one that was against each other.

        Raises EngineError when they differ and the bytes to tell who is right cannot be had.
        """
        self.audits.drawn += 1
        if answer.reply == used.reply:
            self.audits.agreed += 1
        else:
            with self._counting():
                await self._settle([answer, used])

    @property
    def pending(self) -> int:
        """Checks that are still to be made in the background."""
        return BACKLOG - self._waiting.value

    async def finish(self) -> None:
        """Waits until no check is pending; the caller owns the deadline."""
        while self.pending:
            await self._finished.wait()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Counts a check that is cancelled."""
        try:
            yield
        except trio.Cancelled:
            self.audits.unchecked += 1
            raise

    def _others(self, answer: Answer) -> list[Remote]:
        experts = set(answer.work.expert.tolist())
        usable = self._pool.usable(without=(answer.remote,))
        return [remote for remote in usable if remote.holds_all(answer.work.layer, experts)]

    async def _later(self, answer: Answer, number: int) -> None:
        await self._waiting.acquire()
        self.doubts.open(number)

        async def check() -> None:
            try:
                # The answer was used long ago; that it could not be checked is counted.
                with suppress(EngineError), self._counting():
                    async with self._checking:
                        await self._settle([answer])
            finally:
                self.doubts.close(number)
                self._waiting.release()
                self._finished.set()
                self._finished = trio.Event()

        self._pool.nursery.start_soon(check)

    async def _settle(self, answers: list[Answer]) -> Checked:
        """Recomputes a call, convicts whoever answered otherwise, and gives the right outputs."""
        first = answers[0]
        try:
            truth = await self._recompute(first.work)
        except EngineError:
            self.audits.unchecked += 1
            if len(answers) == 1 and self.share < 1:
                return Checked(first.outputs, False)
            raise  # no answer may be used unchecked; or two contradict each other, and neither can be believed
        self.audits.recomputed += 1
        right = encode_outputs(truth)
        for answer in answers:
            if answer.reply != right:
                self._convict(answer)
        form = self._recompute.form(first.work.layer)
        return Checked(decode_outputs(form, len(first.work), right, "this machine"), True)

    def _convict(self, answer: Answer) -> None:
        remote, layer = answer.remote, answer.work.layer
        if remote.banned:
            return
        made = Proof(
            remote.key, self._pool.profile, answer.message, answer.request, answer.reply, answer.receipt
        )
        proof: Proof | None = made
        reason = f"it gave a wrong answer for layer {layer}"
        try:
            made.check_signature()
        except BadSignature:
            proof, reason = None, f"{reason}, without a signature that holds"
        self._pool.ban(remote, reason)
        if remote in self._helped:
            self.doubts.withdraw(*self._helped.pop(remote), f"{remote.name} lied: {reason}")
        conviction = Conviction(remote, layer, reason, proof)
        self.audits.convictions.append(conviction)
        self._report(conviction)
