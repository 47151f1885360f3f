"""How many threads the kernels use, and that one launch at a time has them.

Kernels launch through Numba's OpenMP layer where libgomp is installed, else through its workqueue. One lock is held
a launch: two models or sessions in one process then take turns, kernel by kernel (token by token where a token goes
through all layers in one), instead of both slowing down (and the workqueue, which does not allow two launches at a
time, is safe). Work too small to be worth a launch stays in the calling thread. Functions that are not parallel
themselves are run on slices of rows by a few Python threads.

A step of decoding may be some hundred launches with little in between. So a thread that ran out of work looks for more
`SPINS` times, a fraction of a millisecond, before it sleeps: waking it would take longer than many a launch. Between
steps it sleeps. Where each layer pauses (for a donor's answer, or for a chatter's call) it looks for a shorter time:
whoever computes meanwhile on the same machine needs the processor, and in a team that is not kept apart (`places`) so
may the thread that was woken where its companion looks for work.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from numba import set_num_threads as untyped_set_num_threads
from numba.core import config as untyped_config
from numba.np.ufunc import parallel as untyped_layers

from engine.groups import processors
from engine.kernels.places import Team, cores, free

config: Any = untyped_config
set_num_threads: Any = untyped_set_num_threads
layers: Any = untyped_layers

SMALL = 1 << 19  # multiplications below which one thread is faster than a launch
SPINS = 20_000  # looks for more work before a thread sleeps
SPINS_WITH_PAUSES = 1_000
LARGE = 1 << 18  # elements from which rows are shared among threads


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once, and in a container at most those it may use up; at
    least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    here = max(1, len(cores(allowed)))
    return min(here, processors() or here)


class _Told(threading.local):
    """What a calling thread is and has told Numba."""

    count = 0
    alone = False
    team: Team | None = None
    settled: Team | None = None  # within `apart`


class _Launches:
    """The lock, the number of threads chosen, and what each calling thread is and has told Numba."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = 0
        self.told = _Told()
        self.pool: ThreadPoolExecutor | None = None
        self.layer = ""
        self.spins = SPINS

    def tell(self, count: int) -> None:
        if self.told.count != count:
            if not self.layer:
                self.start()
            set_num_threads(count)
            self.told.count = count

    def start(self) -> None:
        """Loads Numba's threading layer. libgomp reads once, then, how long its threads wait for work; processes
        that this one starts are not told."""
        with self.lock:
            ours = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": str(self.spins)}
            if any(name in os.environ for name in ours):  # the user's choice counts
                ours = {}
            os.environ.update(ours)
            try:
                set_num_threads(1)
            finally:
                for name in ours:
                    del os.environ[name]
            self.layer = layers.threading_layer()

    @property
    def alone(self) -> bool:
        """Whether launches of the calling thread stay in it, and need not take turns."""
        return self.told.alone and self.layer in ("omp", "tbb")

    def workers(self) -> ThreadPoolExecutor:
        with self.lock:
            if self.pool is None:
                self.pool = ThreadPoolExecutor(max(1, config.NUMBA_NUM_THREADS), "rows", free)
            return self.pool

    def team(self) -> Team:
        """The calling thread's, of as many as its launches use now."""
        size, team = 1 if self.alone else threads(), self.told.team
        if team is None or team.size != size:
            with launch(SMALL):
                team = self.told.team = Team(size, bind=self.layer == "omp")
        return team


_launches = _Launches()


def set_threads(count: int | None = None) -> int:
    """Use `count` threads from now on in all kernels (None: one a physical core). Returns the number set.

    More than the machine has logical processors cannot be had; ValueError when `count` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"kernels need at least one thread, not {count}")
    _launches.count = min(count or physical_cores(), config.NUMBA_NUM_THREADS)
    return _launches.count


def threads() -> int:
    """The number of threads kernels use."""
    return _launches.count or set_threads()


def expect_pauses() -> None:
    """This process computes with a pause in each layer; to be said before its first launch, else it changes nothing."""
    _launches.spins = SPINS_WITH_PAUSES


def stay_alone() -> None:
    """From now on launches of the calling thread use no other: for threads that work side by side in the background.

    OpenMP gives each thread that launches a team of its own, and stops waiting actively when all of them together are
    more than the processors.
    """
    if not _launches.layer:
        _launches.start()
    _launches.told.alone = True
    free()


class launch:  # noqa: N801  (reads as a word: with launch(work) as count)
    """Holds the kernels' threads for one launch of `work` multiplications; gives the number of threads
    to use.
    """

    __slots__ = ("work",)

    def __init__(self, work: int) -> None:
        self.work = work

    def __enter__(self) -> int:
        if _launches.alone:
            _launches.tell(1)
            return 1
        _launches.lock.acquire()
        count = 1 if self.work < SMALL else threads()
        _launches.tell(count)
        return count

    def __exit__(self, *exc: object) -> None:
        if not _launches.alone:
            _launches.lock.release()


gate = launch(SMALL)
"""`with gate:` holds all threads for a launch of a size not known; the kernel is then given `threads()`."""


class apart:  # noqa: N801  (reads as a word: with apart())
    """While inside, the threads that launches of this thread use keep each to a core of its own (see `places`).

    For one pass or one answer: what starts a thread or a process meanwhile would bind it to one core as well,
    and what waits for another thread should do so in `waiting`. Inside each other only the outermost counts.
    """

    __slots__ = ("_team",)

    def __enter__(self) -> None:
        told, self._team = _launches.told, None
        if told.settled is None:
            self._team = told.settled = _launches.team()
            self._team.settle()

    def __exit__(self, *exc: object) -> None:
        if self._team is not None:
            _launches.told.settled = None
            self._team.roam()


class waiting:  # noqa: N801  (reads as a word: with waiting())
    """While inside, this thread is as if it were not in any `apart`: for waits amid a pass."""

    __slots__ = ("_team",)

    def __enter__(self) -> None:
        told = _launches.told
        self._team, told.settled = told.settled, None
        if self._team is not None:
            self._team.roam()

    def __exit__(self, *exc: object) -> None:
        _launches.told.settled = self._team
        if self._team is not None:
            self._team.settle()


def over_rows(rows: int, elements: int, run: Callable[[slice], None]) -> None:
    """Calls `run` for slices that together are all rows, from several threads when there are many
    elements.
    """
    shares = min(threads(), rows)
    if shares < 2 or elements < LARGE:
        run(slice(0, rows))
        return
    bounds = [rows * share // shares for share in range(shares + 1)]
    pool = _launches.workers()
    waiting = [pool.submit(run, slice(low, high)) for low, high in pairwise(bounds[1:])]
    run(slice(0, bounds[1]))
    for future in waiting:
        future.result()
