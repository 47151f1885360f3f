"""One task that looks after all rounds of a pool: hedges what is late, gives up what is overdue.

A round is over in less than a millisecond when all goes well, so it gets no task of its own; it only says
when it wants to be looked at. The task sleeps until the earliest such time it has heard of. A round that has
ended by then costs one look that finds nothing.
"""

from typing import Protocol

import trio


class Watched(Protocol):
    """What wants to be looked at."""

    def tend(self, now: float) -> float:
        """Does what is due; when to look again, in trio's time (inf: never)."""
        ...

    def leave(self) -> None:
        """The pool is being left: nothing will come any more."""
        ...


class Watch:
    """See the module. All methods are for the trio thread."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._watched: set[Watched] = set()
        self._scope: trio.CancelScope | None = None
        self._left = False

    def add(self, one: Watched) -> None:
        """Looks after it from now on. RuntimeError when the pool was left."""
        if self._left:
            raise RuntimeError("the pool was left")
        if self._scope is None:
            self._nursery.start_soon(self._run)  # refuses when its nursery has ended
            self._scope = trio.CancelScope()
        self._watched.add(one)

    def remove(self, one: Watched) -> None:
        """It is over."""
        self._watched.discard(one)

    def wake_at(self, when: float) -> None:
        """Something is due then."""
        if self._scope is not None and when < self._scope.deadline:
            self._scope.deadline = when

    async def _run(self) -> None:
        try:
            while True:
                assert self._scope is not None
                with self._scope:
                    await trio.sleep_forever()
                now = trio.current_time()
                self._scope = trio.CancelScope()
                for one in list(self._watched):
                    self.wake_at(one.tend(now))
        finally:
            self._left = True
            for one in list(self._watched):
                one.leave()
