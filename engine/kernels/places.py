"""Each thread of a team on a processor of its own, while it computes.

Systems move threads to where it is quiet, but late: on a virtual machine a thread that slept for a few milliseconds
is often woken on the processor of whoever woke it, which computes itself. What two threads share then takes as long
as one would, and where they wait for each other actively several times as long. So while a pass runs, its threads
stay apart. The one that launches stays where it was when the pass began, so that the system still chooses; in between
it may go anywhere, as may any thread or process that it starts.

Only a team that has all cores is kept apart: of a smaller one the system knows better where there is room. Where
threads cannot be bound (macOS), where the user says how (`OMP_PROC_BIND`, `taskset`) and without OpenMP nothing is
done.
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba import prange, types

from engine.kernels.compile import intrinsic, kernel
from engine.kernels.ir import I64, constant, function

GETTID = {"x86_64": 186, "aarch64": 178}
"""The number of the system call that tells a thread's own, which older C libraries have no function for."""
CAN_BIND = sys.platform == "linux" and platform.machine() in GETTID and "OMP_PROC_BIND" not in os.environ


@intrinsic
def _thread_number(typing_context: Any) -> Any:
    """The calling thread's, as the system counts."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = constant(I64, GETTID[platform.machine()])
        return builder.call(function(builder, "syscall", I64, [I64]), [number])

    return types.int64(), generate


@kernel(parallel=True)
def _thread_numbers(out, threads):  # type: ignore[no-untyped-def]
    for place in prange(threads):
        out[place] = _thread_number()


def cores(processors: Iterable[int]) -> list[frozenset[int]]:
    """The processors by the core that they are part of: more than one together are hyper-threads."""
    found: dict[str, set[int]] = {}
    for processor in sorted(processors):
        siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        try:
            name = siblings.read_text().strip()
        except OSError:
            name = str(processor)
        found.setdefault(name, set()).add(processor)
    return [frozenset(core) for core in found.values()]


def free() -> None:
    """Lets the calling thread go wherever this process could when it started."""
    if CAN_BIND:
        with suppress(OSError):  # the system restricts it further by now
            os.sched_setaffinity(0, _AT_START)


class Team:
    """The threads that launches of one thread use, and the cores they have. To be made and used in that thread.

    `roam` must follow each `settle`. Both do nothing where the team is not one that is kept apart.
    """

    def __init__(self, size: int, bind: bool) -> None:
        """`size`: threads a launch uses from now on; the launching one is one of them. Launches once.

        `bind` False: it is not to be kept apart.
        """
        self.size = size
        self._cores: dict[int, frozenset[int]] = {}  # by processor; none: not kept apart
        self._homes: dict[frozenset[int], int] = {}  # the number of the other thread that has a core
        if size > 1 and bind and CAN_BIND:
            self._allowed = os.sched_getaffinity(0)
            places = cores(self._allowed)
            if len(places) == size:
                self._place(places)

    def settle(self) -> None:
        """Keeps the launching thread on the core where it is, and the others off it."""
        if self._cores:
            self._try(self._settle)

    def roam(self) -> None:
        """Lets the launching thread go anywhere again."""
        if self._cores:
            self._try(lambda: os.sched_setaffinity(0, self._allowed))

    def _place(self, places: list[frozenset[int]]) -> None:
        numbers = np.zeros(self.size, np.int64)
        _thread_numbers(numbers, self.size)
        others = sorted(set(numbers.tolist()) - {threading.get_native_id()})
        if len(others) == self.size - 1:
            self._cores = {processor: core for core in places for processor in core}
            self._core = self._here()  # where the launching thread was settled last
            rest = [core for core in places if core != self._core]
            self._homes = dict(zip(rest, others, strict=True))
            self._try(self._part)

    def _part(self) -> None:
        for core, number in self._homes.items():
            os.sched_setaffinity(number, core)

    def _settle(self) -> None:
        core = self._here()
        if core != self._core:
            number = self._homes.pop(core)
            os.sched_setaffinity(number, self._core)
            self._homes[self._core], self._core = number, core
        os.sched_setaffinity(0, core)

    def _here(self) -> frozenset[int]:
        return self._cores[_libc.sched_getcpu()]

    def _try(self, bind: Callable[[], object]) -> None:
        """Binds; gives up once and for all when somebody else has changed meanwhile where threads may run."""
        try:
            bind()
        except (OSError, KeyError):
            self._cores = {}


_AT_START = os.sched_getaffinity(0) if CAN_BIND else set[int]()
_libc: Any = ctypes.CDLL(None)
