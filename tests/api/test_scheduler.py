"""The compute thread of the API: a fault in one reply is that reply's alone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from engine import batch
from engine.arrays import F32
from engine.batch import ReplyBatch
from engine.engine import Engine, Options
from engine.errors import NotComputed
from engine.experts import Experts, Stoppable
from engine.models import Model, Segment
from engine.reply import BatchEvent
from engine.sampling import Sampling
from engine.source import DirectorySource
from swarm.api import scheduler as scheduler_module
from swarm.api.scheduler import Broken, Ended, Grown, Run, RunEvent, Scheduler
from swarm.demo.generated import write_checkpoint

PATIENCE_S = 60.0
DAMAGED = [7, 7, 7]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    write_checkpoint(tmp_path / "model")
    with Engine.open(DirectorySource(tmp_path / "model"), Options()) as opened:
        yield opened


class Heard:
    """A run, and what it was told."""

    def __init__(self, engine: Engine, ids: list[int]) -> None:
        self.events: list[RunEvent] = []
        self.over = threading.Event()
        self.run = Run(engine, ids, self._hear, lambda: None, Sampling(temperature=0.0), max_tokens=8)

    def _hear(self, event: RunEvent) -> None:
        self.events.append(event)
        if isinstance(event, Broken | Ended):
            self.over.set()

    def tokens(self) -> list[int]:
        assert self.over.wait(PATIENCE_S)
        return [event.token for event in self.events if isinstance(event, Grown)]


def test_a_reply_that_fails_leaves_the_others_as_they_are(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scheduler(slots=2) as scheduler:
        alone = Heard(engine, [1, 2, 3])
        scheduler.submit(alone.run)
        right = alone.tokens()
        assert right
        scheduler.forget(engine)
        step = ReplyBatch.step

        def fail(batch: ReplyBatch) -> list[BatchEvent]:
            victim = next((reply for reply in batch._replies if reply.ids[:3] == DAMAGED), None)
            if victim is not None:
                batch._replies.remove(victim)
                raise NotComputed("its weights are damaged", victim)
            return step(batch)

        monkeypatch.setattr(ReplyBatch, "step", fail)
        sound, damaged = Heard(engine, [1, 2, 3]), Heard(engine, DAMAGED)
        scheduler.submit(damaged.run)
        scheduler.submit(sound.run)
        assert sound.tokens() == right
        assert damaged.tokens() == []
        assert isinstance(damaged.events[-1], Broken)
        assert isinstance(damaged.events[-1].error, NotComputed)
        assert isinstance(sound.events[-1], Ended)


def test_a_run_that_cannot_begin_ends_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_state() -> None:
        raise ZeroDivisionError

    with Scheduler(slots=1) as scheduler:
        with monkeypatch.context() as broken:
            broken.setattr(engine.model, "new_state", no_state)
            failed = Heard(engine, [1, 2])
            scheduler.submit(failed.run)
            assert failed.tokens() == []
            assert isinstance(failed.events[-1], Broken)
        later = Heard(engine, [1, 2])
        scheduler.submit(later.run)
        assert later.tokens()


class _Passes:
    """The rows of each sequence in each forward pass, also of those that were stopped; `during` runs once, in the
    first layer of the first."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, during: Callable[[], None]) -> None:
        self.rows: list[list[int]] = []
        self._waiting = [during]
        forward = batch.forward

        def noted(model: Model, segments: Sequence[Segment], experts: Experts) -> F32:
            self.rows.append([len(segment.tokens) for segment in segments])
            return forward(model, segments, experts)

        monkeypatch.setattr(batch, "forward", noted)
        engine.experts = Stoppable(engine.experts, self._once)

    def _once(self) -> bool:
        if self._waiting:
            self._waiting.pop()()
        return False


LONG = list(range(20, 40))


@pytest.mark.parametrize(
    ("first", "second", "together_s", "passes"),
    [
        pytest.param([1, 2, 3], [4, 5], PATIENCE_S, [[3], [3, 2], [1, 1]], id="anew with both"),
        pytest.param([1, 2, 3], [4, 5], 0.0, [[3], [1, 2], [1, 1]], id="too late"),
        pytest.param(
            [*LONG, 1], [*LONG, 2], PATIENCE_S, [[21], [1, 1], [1, 1]], id="its beginning is being read"
        ),
    ],
)
def test_prompts_that_come_at_once_are_read_in_one_pass(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    first: list[int],
    second: list[int],
    together_s: float,
    passes: list[list[int]],
) -> None:
    monkeypatch.setattr(scheduler_module, "TOGETHER_S", together_s)
    right = []
    for ids in (first, second):
        with Scheduler(slots=2) as scheduler:
            alone = Heard(engine, ids)
            scheduler.submit(alone.run)
            right.append(alone.tokens())
    with Scheduler(slots=2) as scheduler:
        one, other = Heard(engine, first), Heard(engine, second)
        made = _Passes(engine, monkeypatch, lambda: scheduler.submit(other.run))
        scheduler.submit(one.run)
        assert [one.tokens(), other.tokens()] == right
        assert made.rows[:3] == passes


def test_whoever_waits_for_a_token_is_not_held_up_by_a_prompt_that_comes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "TOGETHER_S", PATIENCE_S)
    with Scheduler(slots=2) as scheduler:
        one, other = Heard(engine, [1, 2, 3]), Heard(engine, [4, 5])
        layers = len(engine.bank.layout.layers)
        calls = 0

        def during_the_second() -> bool:
            nonlocal calls
            calls += 1
            if calls == layers + 1:
                scheduler.submit(other.run)
            return False

        made = _Passes(engine, monkeypatch, lambda: None)
        engine.experts = Stoppable(engine.experts, during_the_second)
        scheduler.submit(one.run)
        assert one.tokens()
        assert other.tokens()
        assert made.rows[:3] == [[3], [1], [1, 2]]
