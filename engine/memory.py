"""Memory of the machine: how much is free, and large pieces of it."""

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np

from engine.arrays import U8

LARGE_BYTES = 4 << 20


def available_bytes() -> int:
    """Memory that can be taken without swapping; half of all there is where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def arena(slots: int, slot_bytes: int) -> U8:
    """uint8 [slots, slot_bytes], page aligned. Memory is taken page by page as it is written, in huge pages
    if possible."""
    count = max(slots * slot_bytes, 1)
    # Private: the system gives huge pages to shared memory only where it was told to.
    block = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if count >= LARGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8, slots * slot_bytes).reshape(slots, slot_bytes)
