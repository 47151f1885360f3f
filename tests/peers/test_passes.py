"""Where passes run, and what becomes of them when something goes wrong."""

import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from engine.errors import ExpertsUnavailable
from swarm.peers import passes as module
from swarm.peers.network import NetworkClosed, NetworkThread
from swarm.peers.passes import FEW_ROWS, MOST_STRETCH_S, Done, Passes


@pytest.fixture
async def short(nursery: trio.Nursery) -> Passes:
    """Passes that were short so far."""
    passes = Passes(nursery)
    passes.stretches_s[1] = 0.0
    return passes


def later(nursery: trio.Nursery, error: Exception | None = None) -> Callable[[Done], None]:
    """Something that is done in a moment, or fails."""

    async def run(done: Done) -> None:
        await trio.sleep(0.002)
        done(error)

    return lambda done: nursery.start_soon(run, done)


async def run(passes: Passes, work: Callable[[], Any], rows: int = 1, only_donors: bool = True) -> Any:
    """What a pass gives that another thread asks for."""
    return await trio.to_thread.run_sync(partial(passes.run, rows, work, only_donors))


def where() -> int:
    return threading.get_ident()


async def test_a_short_pass_runs_in_trios_thread(short: Passes, nursery: trio.Nursery) -> None:
    seen: list[tuple[int, bool]] = []

    def work() -> str:
        for _ in range(3):
            short.ask(later(nursery))()
            seen.append((where(), short.inside))
        short.ask(lambda done: done(None))()  # there before it is waited for
        return "value"

    assert await run(short, work) == "value"
    assert seen == [(where(), True)] * 3
    assert not short.inside


async def test_trio_goes_on_while_a_pass_waits(short: Passes, nursery: trio.Nursery) -> None:
    ready = trio.Event()
    released = trio.Event()

    async def answer(done: Done) -> None:
        ready.set()
        await released.wait()
        done(None)

    def work() -> int:
        short.ask(lambda done: nursery.start_soon(answer, done))()
        return 1

    async with trio.open_nursery() as waiting:
        waiting.start_soon(run, short, work)
        await ready.wait()
        released.set()


@pytest.mark.parametrize(
    ("rows", "before", "only_donors"),
    [
        (FEW_ROWS + 1, {FEW_ROWS + 1: 0.0}, True),
        (1, {1: 2 * MOST_STRETCH_S}, True),
        (2, {1: 0.0}, True),
        (1, {1: 0.0}, False),
    ],
)
async def test_what_would_hold_trio_up_stays_where_it_was_asked_for(
    nursery: trio.Nursery, rows: int, before: dict[int, float], only_donors: bool
) -> None:
    passes = Passes(nursery)
    passes.stretches_s = before
    seen: list[int] = []

    def work() -> None:
        passes.ask(later(nursery))()
        assert not passes.inside
        seen.append(where())

    await run(passes, work, rows, only_donors)
    assert seen
    assert seen[0] != where()


async def test_stretches_are_measured(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    passes = Passes(nursery)

    def work() -> None:
        passes.ask(later(nursery))()  # 3 s until then, 7 s of waiting
        passes.ask(later(nursery))()  # 1 s, 9 s of waiting; 2 s after that

    await run(passes, work)
    assert passes.stretches_s == {1: 3.0}


async def test_errors_reach_who_asked(short: Passes, nursery: trio.Nursery) -> None:
    def fails() -> None:
        short.ask(later(nursery, NetworkClosed()))()

    with pytest.raises(NetworkClosed):
        await run(short, fails)

    def raises() -> None:
        short.ask(later(nursery))()
        raise ExpertsUnavailable("gone")

    with pytest.raises(ExpertsUnavailable, match="gone"):
        await run(short, raises)
    assert await run(short, lambda: 5) == 5  # and the next goes on


async def test_what_may_wait_for_trio_runs_elsewhere(short: Passes) -> None:
    token = trio.lowlevel.current_trio_token()

    def needs_trio() -> int:
        trio.from_thread.run(trio.sleep, 0.001, trio_token=token)
        return where()

    def work() -> int:
        return short.elsewhere(needs_trio)

    assert await run(short, work) != where()

    def refused() -> None:
        raise ExpertsUnavailable("not there")

    with pytest.raises(ExpertsUnavailable, match="not there"):
        await run(short, lambda: short.elsewhere(refused))
    here = await run(short, lambda: short.elsewhere(where), only_donors=False)
    assert here != where()


@asynccontextmanager
async def made() -> AsyncIterator[tuple[Passes, trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        passes = Passes(nursery)
        passes.stretches_s[1] = 0.0
        yield passes, nursery
        nursery.cancel_scope.cancel()


def test_control_c_ends_a_pass_that_waits() -> None:
    with NetworkThread() as network:
        passes, _ = network.enter(made)
        ended = []

        def work() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                passes.ask(lambda done: None)()  # nobody ever answers
            finally:
                ended.append(passes.inside)

        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        try:
            with pytest.raises(KeyboardInterrupt):
                passes.run(1, work, only_donors=True)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert ended == [True]
        assert passes.run(1, lambda: 7, only_donors=True) == 7


def test_a_swarm_that_is_left_ends_what_waits_elsewhere() -> None:
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        time.sleep(0.2)

    with NetworkThread() as network:
        passes, nursery = network.enter(made)
        found: list[BaseException | None] = []

        def ask() -> None:
            try:
                passes.run(1, lambda: [passes.elsewhere(slow), passes.elsewhere(slow)], only_donors=True)
            except NetworkClosed as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        begun.wait()
        passes.soon(nursery.cancel_scope.cancel)
        thread.join(10)
        assert not thread.is_alive()
        assert len(found) == 1
    with pytest.raises(NetworkClosed):
        passes.run(1, lambda: 1, only_donors=True)
