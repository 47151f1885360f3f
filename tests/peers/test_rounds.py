"""A round whose donors are busy waits for them, and then runs the work here."""

import itertools
from typing import Any, cast

import numpy as np
import pytest
import trio

from engine.doubts import Doubts
from engine.kernels import ExpertRows, quantize_rows
from swarm.peers.calls import Form, Work
from swarm.peers.here import Here
from swarm.peers.rounds import MOST_WAIT_S, MOST_WAITS, Round

WORK = Work(0, np.zeros(1, np.int32), np.zeros(1, np.int32), quantize_rows(np.ones((1, 32), np.float32)))
RIGHT = ExpertRows(np.ones((1, 32), np.int16), np.ones((1, 1), np.float32))


class NobodyFree:
    """Donors that are busy until a moment a given time from now, over and over; watches and audits nothing."""

    def __init__(self, nursery: trio.Nursery, busy_for_s: float) -> None:
        self.nursery = nursery
        self.watch: Any = self
        self.turn = itertools.count()
        self.doubts = Doubts()
        self._busy_for_s = busy_for_s

    def add(self, watched: object) -> None:
        """Has nothing to watch for."""

    def remove(self, watched: object) -> None:
        """The same."""

    def usable(self, without: object = ()) -> list[Any]:
        return []

    async def ask_again(self) -> bool:
        return False

    def busy_until(self, layer: int, experts: object) -> float:
        return trio.current_time() + self._busy_for_s


class InMemory(Here):
    """Knows every answer."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None))

    def holds_all(self, layer: int, experts: object) -> bool:
        return True

    def run(self, work: Work) -> ExpertRows:
        return RIGHT


@pytest.mark.parametrize("busy_for_s", [-0.001, 0.1, 60.0])
async def test_busy_donors_are_waited_for_also_when_their_time_has_just_come(
    busy_for_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    out = ExpertRows(np.zeros((1, 32), np.int16), np.zeros((1, 1), np.float32))
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        pool: Any = NobodyFree(nursery, busy_for_s)
        started = trio.current_time()
        one = Round(pool, pool, Form(32, True), WORK, out, InMemory(), None)
        one.begin(np.arange(1), lambda error: done.set())
        await done.wait()
    waited_s = trio.current_time() - started
    assert waited_s == pytest.approx(MOST_WAITS * min(max(busy_for_s, 0.0), MOST_WAIT_S), abs=0.01)
    assert np.array_equal(out.values, RIGHT.values)
