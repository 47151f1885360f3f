"""Racing attempts: who wins, who is cancelled, when the next one starts. Time jumps."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from swarm.wire.race import AllFailed, hedge, plain_errors, race


class Lost(Exception):
    """An attempt that failed as attempts do."""


class Log(list[str]):
    """What happened, and when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.began_at = trio.current_time()

    @property
    def now_s(self) -> float:
        return round(trio.current_time() - self.began_at, 6)


def attempt(
    log: Log, name: str, after_s: float, error: Exception | None = None
) -> Callable[[], Awaitable[str]]:
    async def run() -> str:
        log.append(f"{name} starts at {log.now_s:g}")
        try:
            await trio.sleep(after_s)
        except trio.Cancelled:
            log.append(f"{name} cancelled")
            raise
        if error is not None:
            raise error
        return name

    return run


async def test_the_first_wins_before_the_second_starts(autojump_clock: Any) -> None:
    log = Log()
    assert await hedge(attempt(log, "a", 1), attempt(log, "b", 1), after_s=2, expected=(Lost,)) == (0, "a")
    assert log == ["a starts at 0"]


async def test_a_late_first_still_wins_and_the_second_is_cancelled(autojump_clock: Any) -> None:
    log = Log()
    assert await hedge(attempt(log, "a", 3), attempt(log, "b", 5), after_s=2, expected=(Lost,)) == (0, "a")
    assert log == ["a starts at 0", "b starts at 2", "b cancelled"]
    assert log.now_s == 3


async def test_the_second_wins(autojump_clock: Any) -> None:
    log = Log()
    assert await hedge(attempt(log, "a", 9), attempt(log, "b", 1), after_s=2, expected=(Lost,)) == (1, "b")
    assert log == ["a starts at 0", "b starts at 2", "a cancelled"]


async def test_a_failure_starts_the_next_at_once(autojump_clock: Any) -> None:
    log = Log()
    attempts = [attempt(log, "a", 1, Lost()), attempt(log, "b", 1, Lost()), attempt(log, "c", 1)]
    assert await race(attempts, stagger_s=50, expected=(Lost,)) == (2, "c")
    assert log == ["a starts at 0", "b starts at 1", "c starts at 2"]


async def test_when_all_fail_every_reason_is_kept(autojump_clock: Any) -> None:
    errors = [Lost("one"), Lost("two")]
    with pytest.raises(AllFailed) as caught:
        await race(
            [attempt(Log(), "a", 5, errors[0]), attempt(Log(), "b", 1, errors[1])],
            stagger_s=2,
            expected=(Lost,),
        )
    assert caught.value.errors == tuple(errors)
    assert str(caught.value) == "one; two"


async def test_an_error_that_was_not_expected_ends_the_race_as_itself(autojump_clock: Any) -> None:
    log = Log()
    with pytest.raises(KeyError):
        await race([attempt(log, "a", 9), attempt(log, "b", 1, KeyError("x"))], stagger_s=2, expected=(Lost,))
    assert "a cancelled" in log


async def test_a_second_success_at_the_same_moment_is_discarded(autojump_clock: Any) -> None:
    go, discarded = trio.Event(), list[str]()

    async def wait(name: str) -> str:
        await go.wait()
        return name

    async def both() -> None:
        winner = await race(
            [partial(wait, "a"), partial(wait, "b")], stagger_s=0, expected=(Lost,), discard=discarded.append
        )
        assert {winner[1], *discarded} == {"a", "b"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(both)
        await trio.sleep(1)
        go.set()
    assert len(discarded) == 1


async def test_a_race_needs_runners_and_obeys_its_caller(autojump_clock: Any) -> None:
    with pytest.raises(ValueError, match="needs an attempt"):
        await race([], stagger_s=1, expected=(Lost,))
    with trio.move_on_after(1) as scope:
        await race([attempt(Log(), "a", 9), attempt(Log(), "b", 9)], stagger_s=0.5, expected=(Lost,))
    assert scope.cancelled_caught


async def test_single_errors_come_out_plain_and_several_as_a_group(autojump_clock: Any) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def one() -> None:
        async with plain_errors() as nursery:
            nursery.start_soon(fail, Lost())
            await trio.sleep_forever()

    async def nested() -> None:
        async with plain_errors() as outer, plain_errors():
            outer.start_soon(fail, Lost())
            await trio.sleep_forever()

    async def two() -> None:
        async with plain_errors() as nursery:
            nursery.start_soon(fail, Lost())
            nursery.start_soon(fail, KeyError())

    for case, error in ((one, Lost), (nested, Lost), (two, ExceptionGroup)):
        with pytest.raises(error):
            await case()
    with trio.move_on_after(1):
        async with plain_errors():
            await trio.sleep_forever()
