"""Where a pass of a model runs whose experts are on peers.

A pass asks donors once a layer. From a thread of its own that takes four changes of threads a layer: to trio's, which
sends, back, to trio's again, where the answer is read, and back. So a short pass runs in trio's thread, as a greenlet:
it stops where it has to wait for donors, and goes on where the last answer is read. Whoever wants the pass waits in
its own thread, once a pass.

While such a pass computes, no task of trio's runs. So it is only for passes of few rows whose stretches of computing,
as measured on the last of as many rows, are short (the first may have to compile kernels); and what may wait for
something other than donors (experts that are read, the bank's lock) has to be done by `elsewhere` there.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

import greenlet
import trio

from engine.kernels import waiting
from swarm.peers.network import NetworkClosed

FEW_ROWS = 8
"""Of more rows a layer takes long."""
MOST_STRETCH_S = 0.025
"""How long trio's other tasks may have to wait."""

T = TypeVar("T")
Done: TypeAlias = Callable[[Exception | None], None]
"""Says, in trio's thread, that what was asked for is there, or why it never will be."""


class Passes:
    """Runs passes, one at a time, in the thread that asks for them or in trio's. Made in the latter."""

    def __init__(self, nursery: trio.Nursery) -> None:
        """`nursery`: for what is done elsewhere."""
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._inside: greenlet.greenlet | None = None
        self._since_s = 0.0
        self._stretch_s = 0.0  # the longest so far of the pass that runs
        self.stretches_s: dict[int, float] = {}
        """The longest stretch of computing in the last pass of so many rows."""

    @property
    def inside(self) -> bool:
        """Whether the caller is a pass that runs in trio's thread."""
        return greenlet.getcurrent() is self._inside

    def run(self, rows: int, work: Callable[[], T], only_donors: bool) -> T:
        """What `work`, a pass of so many rows, returns or raises. Not to be called in trio's thread.

        `only_donors`: it waits for nothing else, unless by `elsewhere`.
        """
        if rows > FEW_ROWS:
            return work()
        timed = partial(self._timed, rows, work)
        if self.stretches_s.get(rows, math.inf) > MOST_STRETCH_S or not only_donors:
            return timed()
        made: Future[T] = Future()
        self.soon(partial(self._start, timed, made))
        try:
            return made.result()
        except KeyboardInterrupt as interrupt:
            self.soon(partial(self._stop, interrupt))
            made.exception()  # waits until it has ended
            raise

    def ask(self, begin: Callable[[Done], None]) -> Callable[[], None]:
        """Has `begin` called in trio's thread; what comes back waits until it is done, and raises why it is not."""
        if self.inside:
            here = _Answer()
            begin(here.done)
            return partial(self._wait, here.wait)
        answered: SimpleQueue[Exception | None] = SimpleQueue()  # it wakes sooner than a future
        self.soon(partial(begin, answered.put))
        return partial(self._wait, answered.get)

    def elsewhere(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises; where the caller must not wait, it runs in another thread meanwhile."""
        if not self.inside:
            return work()
        found: list[T] = []

        async def run(done: Done) -> None:
            try:
                found.append(await trio.to_thread.run_sync(work))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                done(error)
            except BaseException:
                done(NetworkClosed())
                raise
            else:
                done(None)

        def begin(done: Done) -> None:
            try:
                self._nursery.start_soon(run, done)
            except RuntimeError:  # the swarm was left, and its nursery takes no more tasks
                done(NetworkClosed())

        self.ask(begin)()
        return found[0]

    def soon(self, action: Callable[[], object]) -> None:
        """Has something done in trio's thread; from any thread. Raises NetworkClosed."""
        try:
            self._token.run_sync_soon(action)
        except trio.RunFinishedError:
            raise NetworkClosed() from None

    def _start(self, work: Callable[[], T], made: "Future[T]") -> None:
        def run() -> None:
            try:
                made.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where the pass is waited for
                made.set_exception(error)

        self._inside = greenlet.greenlet(run)
        self._inside.gr_context = copy_context()
        self._inside.switch()

    def _stop(self, interrupt: KeyboardInterrupt) -> None:
        """Ends the pass that waits, if there is one."""
        if self._inside is not None and not self._inside.dead:
            self._inside.throw(interrupt)

    def _timed(self, rows: int, work: Callable[[], T]) -> T:
        self._stretch_s, self._since_s = 0.0, time.perf_counter()
        value = work()
        self.stretches_s[rows] = max(self._stretch_s, time.perf_counter() - self._since_s)
        return value

    def _wait(self, wait: Callable[[], Exception | None]) -> None:
        self._stretch_s = max(self._stretch_s, time.perf_counter() - self._since_s)
        with waiting():
            error = wait()
        self._since_s = time.perf_counter()
        if error is not None:
            raise error


class _Answer:
    """What a pass in trio's thread waits for."""

    __slots__ = ("_came", "_error", "_pass", "_waits")

    def __init__(self) -> None:
        self._pass = greenlet.getcurrent()
        self._waits = self._came = False
        self._error: Exception | None = None

    def done(self, error: Exception | None) -> None:
        self._came, self._error = True, error
        if self._waits:
            self._pass.switch()

    def wait(self) -> Exception | None:
        if not self._came:
            assert self._pass.parent is not None
            self._waits = True
            try:
                self._pass.parent.switch()
            finally:
                self._waits = False
        return self._error
