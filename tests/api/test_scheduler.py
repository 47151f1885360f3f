"""The compute thread of the API: a fault in one reply is that reply's alone."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.batch import BatchEvent, ReplyBatch
from engine.engine import Engine, Options
from engine.errors import NotComputed
from engine.sampling import Sampling
from engine.source import DirectorySource
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
