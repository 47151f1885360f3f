"""How many threads the kernels use, and that one launch at a time has them.

Kernels launch through Numba's OpenMP layer where libgomp is installed, else through its workqueue. One lock
is held a launch: two models or sessions in one process then take turns kernel by kernel, instead of both
slowing down (and the workqueue, which does not allow two launches at a time, is safe).
"""

import os
import threading
from pathlib import Path
from typing import Any

from numba.core import config as untyped_config

config: Any = untyped_config

gate = threading.RLock()
"""Held while a parallel kernel runs."""


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def set_threads(count: int | None = None) -> int:
    """Use `count` threads from now on in all kernels (None: one a physical core). Returns the number set.

    More than the machine has logical processors cannot be had; ValueError when `count` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"kernels need at least one thread, not {count}")
    chosen: int = min(count or physical_cores(), config.NUMBA_NUM_THREADS)
    with gate:
        _Chosen.count = chosen
    return chosen


class _Chosen:
    count = 0


def threads() -> int:
    """The number of threads kernels use."""
    return _Chosen.count or set_threads()
