"""Racing attempts against each other: the first that succeeds wins, the others are cancelled.

Each attempt is a task; a nursery holds them and one event each says that the next may start.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class AllFailed(Exception, Generic[T]):
    """Every attempt of a race failed; ``errors`` holds why, in the order of the attempts."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__("; ".join(str(error) for error in errors))
        self.errors = tuple(errors)


async def race(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    *,
    stagger_s: float,
    expected: tuple[type[Exception], ...],
    discard: Callable[[T], object] | None = None,
) -> tuple[int, T]:
    """Starts attempts one after the other and returns the number and the result of the first to succeed.

    The next one starts when ``stagger_s`` seconds have passed or the one before it failed. Errors of the
    ``expected`` types lose; any other ends the race and is raised. Raises AllFailed when all have lost.
    An attempt that succeeds although another has won just before is given to ``discard``.
    """
    if not attempts:
        raise ValueError("a race needs an attempt")
    winner: tuple[int, T] | None = None
    failures: dict[int, Exception] = {}
    async with plain_errors() as nursery:

        async def run(number: int, over: trio.Event) -> None:
            nonlocal winner
            try:
                result = await attempts[number]()
            except expected as error:
                failures[number] = error
                over.set()
            else:
                if winner is None:
                    winner = number, result
                elif discard is not None:
                    discard(result)
                nursery.cancel_scope.cancel()

        for number in range(len(attempts)):
            over = trio.Event()
            nursery.start_soon(run, number, over)
            if number + 1 < len(attempts):
                with trio.move_on_after(stagger_s):
                    await over.wait()
    if winner is None:
        raise AllFailed([failures[number] for number in sorted(failures)])
    return winner


async def hedge(
    first: Callable[[], Awaitable[T]],
    second: Callable[[], Awaitable[T]],
    *,
    after_s: float,
    expected: tuple[type[Exception], ...],
) -> tuple[int, T]:
    """A race of two: the second starts when the first has failed or has not answered in time."""
    return await race((first, second), stagger_s=after_s, expected=expected)


@asynccontextmanager
async def plain_errors() -> AsyncIterator[trio.Nursery]:
    """A nursery that raises a single error as itself, not as a group of one."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        single = _single(group)
        if single is None:
            raise
        raise single from single.__cause__


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The only error of a group that is no cancellation, through any nesting."""
    _, others = group.split(trio.Cancelled)
    while isinstance(others, BaseExceptionGroup):
        if len(others.exceptions) != 1:
            return None
        only = others.exceptions[0]
        if not isinstance(only, BaseExceptionGroup):
            return only
        others = only
    return None
