"""Memory of the machine: how much is free, and large pieces of it."""

import contextlib
import mmap
import os
import threading
from pathlib import Path

import numpy as np

from engine.arrays import U8, address_of, aligned_bytes
from engine.groups import memory_left
from engine.nodes import spread

LARGE_BYTES = 4 << 20
HUGE_PAGE_BYTES = 2 << 20
BLOCK_BYTES = 16 << 20


def available_bytes() -> int:
    """Memory that can be taken without swapping, in a container what that may take; half of all there is where the
    system does not say."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    left = memory_left()
    return free if left is None else min(free, left)


def arena(slots: int, slot_bytes: int) -> U8:
    """uint8 [slots, slot_bytes], page aligned. Memory is taken page by page as it is written, in huge pages
    if possible."""
    return _mapped(slots * slot_bytes).reshape(slots, slot_bytes)


def _mapped(count: int) -> U8:
    """`count` bytes from the system itself, zero."""
    size = max(count, 1)
    if size >= LARGE_BYTES:  # a whole number of huge pages begins where one does
        size = -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    # Private: the system gives huge pages to shared memory only where it was told to.
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= LARGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            block.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(block, np.uint8, count)
    if size >= LARGE_BYTES:
        spread(address_of(found), size)
    return found


class _Room:
    """The block that the next pieces of `lasting_bytes` are cut from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = np.empty(0, np.uint8)

    def take(self, count: int) -> U8:
        step = -(-count // 64) * 64
        with self._lock:
            if len(self._left) < step:
                self._left = _mapped(BLOCK_BYTES)
            piece, self._left = self._left[:count], self._left[step:]
        return piece


_room = _Room()


def own_bytes(count: int) -> U8:
    """`count` bytes on a multiple of 64; many are taken from the system, and go back to it, by themselves."""
    return aligned_bytes(count) if count < LARGE_BYTES else _mapped(count)


def lasting_bytes(count: int) -> U8:
    """`count` bytes on a multiple of 64, for weights and the like: large pieces lie wholly in huge pages.

    Reading weights is most of decoding, and twice as slow from small pages. Small pieces are plain memory, larger
    ones share blocks, which are given back when all of them are gone.
    """
    if count < HUGE_PAGE_BYTES // 4:
        return aligned_bytes(count)
    return _room.take(count) if count <= BLOCK_BYTES // 2 else _mapped(count)
