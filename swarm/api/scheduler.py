"""The one compute thread: replies of many requests made together, joining and leaving between two steps.

1. A `Run` (a prompt and one reply to it) is submitted from any thread and waits for a free slot, first come,
   first served.
2. It takes what some kept or running state already holds of its prompt. A run whose prompt another one is
   reading at that moment waits until that part is read: a shared beginning is computed once.
3. Each step is one forward pass of each model that is in use. Long prompts are read in pieces, so other
   replies go on meanwhile; no token depends on the company (`engine.batch`).
4. Requests that are sent together come some milliseconds apart. A step that has only prompts to read, and room for
   more, begins anew when another comes soon after its start: one pass over the weights then serves them all.
5. A cancelled run leaves before the next step. What its states hold is kept for prompts to come.
6. Prompts that are only read, for the probabilities of their tokens, are read a piece after each step.
7. What was computed with answers that turn out to be lies is taken back (`engine.doubts`): from replies, and
   from the states that are kept.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.arrays import I32
from engine.batch import PREFILL_ROWS, ReplyBatch
from engine.drafts import Drafter, Pace
from engine.engine import Engine
from engine.errors import Cancelled, EngineError, ReplyFailed
from engine.experts import Stoppable
from engine.reply import BatchEvent, Done, Prefilled, Reason, Reply, Retracted, Stats, Token
from engine.sampling import Sampling
from swarm.api.constraint import Followed
from swarm.api.prefixes import LEAST_SHARED, Prefixes, as_array, common
from swarm.api.readings import Reading, Readings
from swarm.errors import SwarmError

_log = logging.getLogger(__name__)

TOGETHER_S = 0.04
"""How long after its start a step may begin anew. Connections that were opened at once have been told apart by then,
and a pass over a large model has hardly begun."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """`done` of `total` tokens of the prompt are read."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Grown:
    """The reply grew by one token."""

    token: int
    logprob: float | None
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Only the first `kept` tokens of the reply stand; others follow."""

    kept: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply is complete."""

    reason: Reason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Broken:
    """The run failed; nothing follows."""

    error: Exception


RunEvent: TypeAlias = Advanced | Grown | TakenBack | Ended | Broken


@dataclass(eq=False)
class Run:
    """A prompt and how to reply to it. `tell` is called in the compute thread, as is `wake` once a step has told all
    runs what it made; neither may wait."""

    engine: Engine
    ids: Sequence[int]
    tell: Callable[[RunEvent], None]
    wake: Callable[[], None]
    sampling: Sampling
    max_tokens: int | None = None
    logprobs: int | None = None
    constraint: Followed | None = None
    complete: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the scheduler is."""

    slots: int
    running: int
    waiting: int
    kept_bytes: int


class _Desk:
    """One model in use: its batch, the replies in it and the states kept. `next_runs`: who would join a step that
    began now."""

    def __init__(
        self, engine: Engine, most_kept: int, kept_bytes: int, next_runs: Callable[[], list[Run]]
    ) -> None:
        self.engine = engine
        self.batch = ReplyBatch(engine.model, Stoppable(engine.experts, self._better_anew))
        self._next_runs = next_runs
        self._stopped = False
        self._settled_s = 0.0  # from when on the step is not begun anew
        self.replies: dict[Reply, tuple[Run, I32]] = {}
        self.prefixes = Prefixes(most_kept, kept_bytes)
        self._pace = Pace()

    def start(self, run: Run) -> bool:
        """Lets a run join; False when it is better to wait for a beginning that is being read."""
        ids = as_array(run.ids)
        shared, running = self._shared(ids)
        if _is_being_read(shared, running):
            return False
        state = None
        if running is not None and running.state.floor(shared) >= LEAST_SHARED:
            state = running.state.copy()
            state.truncate(state.floor(shared))
        self.prefixes.trim(self.engine.experts.doubts)
        state = state or self.prefixes.take(ids) or self.engine.model.new_state()
        # Where no token ends a reply its grammar does, and is looked at after each step: then one token a step.
        ends_itself = bool(self.engine.stop_ids) or run.constraint is None
        reply = Reply(
            list(run.ids),
            state,
            run.sampling,
            self.engine.stop_ids,
            run.max_tokens,
            run.logprobs,
            run.constraint,
            Drafter(self._pace) if ends_itself else None,
        )
        self.batch.add(reply)
        self.replies[reply] = (run, ids)
        return True

    def step(self) -> list[BatchEvent]:
        """A step of the batch; Cancelled when it had better begin anew, as others have come."""
        if not self._stopped:
            rows = sum(reply.prompt_length - reply.state.length for reply in self.replies)
            joinable = rows < PREFILL_ROWS and all(reply.waits_for_prompt for reply in self.replies)
            self._settled_s = time.monotonic() + TOGETHER_S if joinable else 0.0
        self._stopped = False
        return self.batch.step()

    def leave(self, reply: Reply) -> None:
        self.batch.remove(reply)
        if self.replies.pop(reply, None) is not None:
            self.prefixes.keep(reply.ids, reply.state)

    def _better_anew(self) -> bool:
        """Whether the step that is under way had better begin again with others that have come."""
        if time.monotonic() < self._settled_s:
            self._stopped = any(
                run.engine is self.engine
                and not run.cancelled
                and not _is_being_read(*self._shared(as_array(run.ids)))
                for run in self._next_runs()
            )
        return self._stopped

    def _shared(self, ids: I32) -> tuple[int, Reply | None]:
        """The most that a running reply has of a prompt's beginning, and that reply; None if kept states have more."""
        shared, running = max(
            ((common(other, ids[:-1]), reply) for reply, (_, other) in self.replies.items()),
            key=lambda found: found[0],
            default=(0, None),
        )
        if shared < max(LEAST_SHARED, self.prefixes.longest(ids) + 1):
            return 0, None
        return shared, running


def _is_being_read(shared: int, running: Reply | None) -> bool:
    """Whether the beginning that a prompt shares with a running reply is worth waiting for."""
    return running is not None and running.state.length < shared and running.waits_for_prompt


class Scheduler:
    """`slots` replies at a time, over all models. Starts its thread when it is entered."""

    def __init__(self, slots: int, kept_bytes: int = 1 << 30) -> None:
        self.slots = slots
        self._kept_bytes = kept_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Run] = deque()
        self._readings = Readings()
        self._dropped: list[Engine] = []
        self._desks: dict[Engine, _Desk] = {}
        self._wakes: set[Callable[[], None]] = set()
        self._running = 0
        self._ends = False
        self._thread = threading.Thread(target=self._loop, name="compute", daemon=True)

    def __enter__(self) -> "Scheduler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, run: Run) -> None:
        """Queues a run."""
        with self._changed:
            self._waiting.append(run)
            self._changed.notify_all()

    def read(self, reading: Reading) -> None:
        """Queues a prompt that is only read."""
        with self._changed:
            self._readings.waiting.append(reading)
            self._changed.notify_all()

    def complete(self, run: Run) -> None:
        """No more tokens are wanted; the run ends when those there are were checked, unless they are taken back."""
        with self._changed:
            run.complete = True
            self._changed.notify_all()

    def cancel(self, run: Run | Reading) -> None:
        """Ends a run before the next step; does nothing to one that is done."""
        with self._changed:
            run.cancelled = True
            self._changed.notify_all()

    def forget(self, engine: Engine) -> None:
        """Gives back what is kept of a model that no run uses any more; waits until that is done."""
        with self._changed:
            self._dropped.append(engine)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ends or engine not in self._dropped)

    def load(self) -> Load:
        """How busy it is."""
        with self._changed:
            kept = sum(desk.prefixes.nbytes for desk in list(self._desks.values()))
            waiting = len(self._waiting) + len(self._readings.waiting)
            return Load(self.slots, self._running, waiting, kept)

    def _loop(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Waits for work and does a step of it; False at the end. While it waits it holds on to no run or model."""
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._ends:
                return False
            self._readings.drop_cancelled()
            self._forget_dropped()
            self._drop_ended()
            starting = self._next_runs()
        for run in starting:
            self._start(run)
        for desk in list(self._desks.values()):
            if desk.replies:
                self._step(desk)
        self._wake()
        self._read()
        with self._changed:
            self._running = sum(len(desk.replies) for desk in self._desks.values())
        return True

    def _tell(self, run: Run, event: RunEvent) -> None:
        run.tell(event)
        self._wakes.add(run.wake)

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()
        self._wakes.clear()

    def _has_work(self) -> bool:
        return bool(self._ends or self._waiting or self._readings.waiting or self._dropped or self._running)

    def _forget_dropped(self) -> None:
        for engine in self._dropped:
            self._desks.pop(engine, None)
        self._dropped.clear()
        self._changed.notify_all()

    def _drop_ended(self) -> None:
        self._waiting = deque(run for run in self._waiting if not run.cancelled)
        for desk in self._desks.values():
            for reply, (run, _) in list(desk.replies.items()):
                if run.cancelled:
                    desk.leave(reply)
                elif run.complete:
                    desk.batch.end(reply, "stop")

    def _next_runs(self) -> list[Run]:
        """As many waiting runs as there are free slots."""
        with self._changed:
            return list(self._waiting)[: max(0, self.slots - self._taken)]

    @property
    def _taken(self) -> int:
        return sum(len(desk.replies) for desk in self._desks.values())

    def _start(self, run: Run) -> None:
        desk = self._desk(run.engine)
        try:
            if not desk.start(run):
                return
        except Exception as error:  # noqa: BLE001  the boundary: a fault ends this run, not the server
            _log_fault("a reply could not begin", error)
            self._tell(run, Broken(error))
        with self._changed:
            self._waiting.remove(run)

    def _desk(self, engine: Engine) -> _Desk:
        if engine not in self._desks:
            self._desks[engine] = _Desk(engine, self.slots, self._kept_bytes, self._next_runs)
        return self._desks[engine]

    def _read(self) -> None:
        read = self._readings.step(shared=self._taken > 0)
        if read is not None:
            self._desk(read.engine).prefixes.keep(read.scores.ids, read.scores.state)

    def _step(self, desk: _Desk) -> None:
        try:
            events = desk.step()
        except Cancelled:
            return
        except ReplyFailed as error:
            for reply, (run, _) in list(desk.replies.items()):
                if reply is error.reply:
                    del desk.replies[reply]  # what its state holds is of no use to others
                    self._tell(run, Broken(error))
            return
        except Exception as error:  # noqa: BLE001  the boundary: a fault ends these replies, not the server
            # All replies are as before, but each would meet the same again.
            _log_fault("a step failed", error)
            for reply, (run, _) in list(desk.replies.items()):
                desk.leave(reply)
                self._tell(run, Broken(error))
            return
        for event in events:
            self._pass_on(desk, event)

    def _pass_on(self, desk: _Desk, event: BatchEvent) -> None:
        """Tells a run what a step made of its reply."""
        reply = event.reply
        run, _ = desk.replies[reply]
        match event:
            case Prefilled(_, done, total):
                if done == total:
                    reply.state.mark()
                self._tell(run, Advanced(done, total))
            case Token(_, token, logprob, alternatives):
                self._tell(run, Grown(token, logprob, alternatives))
                if run.constraint is not None and run.constraint.over:
                    run.complete = True
            case Retracted(_, kept, reason):
                run.complete = False
                self._tell(run, TakenBack(kept, reason))
            case Done(_, why):
                desk.leave(reply)
                failure = None if run.constraint is None or why != "stop" else run.constraint.failure
                self._tell(run, Ended(why, reply.stats) if failure is None else Broken(failure))


def _log_fault(what: str, error: Exception) -> None:
    """Logs an error that is nobody's fault but ours."""
    if not isinstance(error, EngineError | SwarmError | OSError | MemoryError):
        _log.error(what, exc_info=error)
