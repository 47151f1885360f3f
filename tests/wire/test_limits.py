"""Pace, budgets and counts of sources."""

import math
from contextlib import ExitStack
from typing import Any

import pytest
import trio
import trio.testing

from swarm.wire.limits import Budget, Limits, Pace, Sources


class Holder:
    """Somebody who holds memory, and may have stalled."""

    def __init__(self, budget_bytes: int = 0, stalled_s: float = 0.0, source: str = "") -> None:
        self.held = budget_bytes
        self.stalled_for_s = stalled_s
        self.source = source
        self.dropped = ""
        self.budget: Budget[Holder] | None = None

    def drop(self, reason: str) -> None:
        self.dropped = reason
        self.stalled_for_s = 0.0
        if self.budget is not None:
            self.budget.give_back(self.held, self)


def budget(limit: int) -> Budget[Holder]:
    return Budget(limit, lambda holder, now: holder.stalled_for_s)


def test_pace() -> None:
    pace = Pace(Limits(least_bytes_per_s=10, pace_s=5))
    assert pace.deadline == math.inf
    pace.progress(1000, 1)
    assert pace.deadline == math.inf
    pace.keep_on(2)
    pace.keep_on(4)
    assert pace.deadline == 7
    pace.progress(49, 6)
    assert pace.deadline == 7
    pace.progress(1, 6.5)
    assert pace.deadline == 11.5
    pace.stop()
    assert pace.deadline == math.inf


async def test_memory_is_granted_in_order(autojump_clock: Any) -> None:
    pool, log = budget(100), []
    first, second = Holder(), Holder()
    assert pool.try_take(80, first)
    assert not pool.try_take(30, second)

    async def want(count: int, name: str) -> None:
        await pool.take(count, second)
        log.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(want, 30, "big")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(want, 10, "small")
        await trio.sleep(10)
        assert log == []  # the small one would fit, but it is not its turn
        pool.give_back(80, first)
    assert log == ["big", "small"]
    assert pool.used == 40


async def test_who_gives_up_waiting_lets_the_next_one_in(autojump_clock: Any) -> None:
    pool = budget(100)
    holder = Holder()
    await pool.take(90, holder)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as scope:
            nursery.start_soon(pool.take, 10, holder)
            await pool.take(50, holder)
        assert scope.cancelled_caught
    assert pool.used == 100


async def test_what_is_larger_than_everything_is_granted_alone(autojump_clock: Any) -> None:
    pool, holder = budget(100), Holder()
    await pool.take(500, holder)
    with trio.move_on_after(1) as scope:
        await pool.take(1, holder)
    assert scope.cancelled_caught
    pool.give_back(500, holder)
    assert pool.used == 0


async def test_who_stalls_loses_its_memory_to_who_waits(autojump_clock: Any) -> None:
    pool = budget(100)
    stalled, busy, waiting = Holder(60, 30.0), Holder(40, 0.0), Holder()
    stalled.budget = busy.budget = pool
    await pool.take(60, stalled)
    await pool.take(40, busy)
    with trio.fail_after(5):
        await pool.take(20, waiting)
    assert "stalled" in stalled.dropped
    assert not busy.dropped


async def test_sources_that_hold_less_are_served_before_those_that_wait_longer(autojump_clock: Any) -> None:
    pool, log = budget(40), []
    crowd, honest = Holder(source="crowd"), Holder(source="honest")
    for _ in range(4):
        await pool.take(10, crowd)

    async def want(holder: Holder, name: str) -> None:
        await pool.take(10, holder)
        log.append(name)

    async with trio.open_nursery() as nursery:
        for name, holder in [("c1", crowd), ("c2", crowd), ("h1", honest), ("h2", honest), ("h3", honest)]:
            nursery.start_soon(want, holder, name)
            await trio.testing.wait_all_tasks_blocked()
        for _ in range(4):
            pool.give_back(10, crowd)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    # 3 to 0, 2 to 1; then the crowd holds 1 and the other 2, twice.
    assert log == ["h1", "h2", "c1", "c2"]


async def test_no_more_who_stalled_are_dropped_than_it_takes(autojump_clock: Any) -> None:
    pool = budget(100)
    alone = Holder(20, 9.0, "alone")
    crowd = [Holder(20, 2.0 + place, "crowd") for place in range(4)]
    for holder in [alone, *crowd]:
        holder.budget = pool
        await pool.take(20, holder)
    with trio.fail_after(1):
        await pool.take(30, Holder(source="new"))
    assert [bool(holder.dropped) for holder in crowd] == [False, False, True, True]  # who stalled longest
    assert not alone.dropped, "a source that holds more goes first"


async def test_memory_that_is_on_its_way_back_is_waited_for(autojump_clock: Any) -> None:
    pool = budget(100)
    first, second = Holder(50, 5.0), Holder(50, 5.0)
    await pool.take(50, first)
    await pool.take(50, second)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.take, 50, Holder())
        await trio.sleep(30)
        (dropped,) = [holder for holder in (first, second) if holder.dropped]
        pool.give_back(50, dropped)


async def test_who_stalls_is_dropped_when_its_time_is_over(autojump_clock: Any) -> None:
    pool: Budget[Holder] = Budget(100, lambda holder, now: now - 0.3 - began)
    began = trio.current_time()
    stalled = Holder(100)
    stalled.budget = pool
    await pool.take(100, stalled)
    await pool.take(10, Holder())
    assert trio.current_time() - began == pytest.approx(Budget.STALLED_S + 0.3, abs=0.02)


def test_no_few_sources_take_all_connections() -> None:
    sources, held = Sources(Limits(connections=64, connections_per_source=32)), ExitStack()

    def take_all(source: str) -> int:
        count = 0
        while held.enter_context(sources.admit(source)):
            count += 1
        return count

    with held:
        assert [take_all(name) for name in "abcdef"] == [32, 16, 8, 4, 2, 1]
        assert take_all("g") == 1, "who has none yet gets in as long as there is room"
        assert take_all("h") == 0
    assert take_all("a") == 32, "whoever is alone may have as many as ever"


def test_sources() -> None:
    sources = Sources(Limits(connections=3, connections_per_source=2))
    with sources.admit("a") as first, sources.admit("a") as second:
        assert first
        assert second
        with sources.admit("a") as third:
            assert not third
        with sources.admit("b") as other:
            assert other
            with sources.admit("c") as too_many:
                assert not too_many
    with sources.admit("a") as again:
        assert again
