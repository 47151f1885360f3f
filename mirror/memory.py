"""Memory for chunks: kept for the next one, and begun at a page.

glibc gives freed memory back to the kernel, which hands it out again zeroed, page by page: for buffers of a
chunk's size, used once and freed, that is half of the system time of receiving a model. Here it is told to
keep some.

Where a large buffer begins is chance. Into one that begins 16 bytes into a page the kernel was seen to copy from the
page cache up to 1.7 times as slowly as into one that begins at a page: each store falls just behind a load of the
same place in its page.
"""

import ctypes
import sys
from contextlib import suppress

import numpy as np

KEPT_BYTES = 64 << 20
_LARGEST_KEPT_BYTES = 4 << 20
_PAGE_BYTES = 4096
_ALIGNED_FROM_BYTES = 64 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed_memory() -> None:
    """Has this process keep up to 64 MiB of freed memory, in pieces of up to 4 MiB; nothing where libc is not
    glibc."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another libc has no mallopt
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)


def buffer_of(size: int) -> memoryview:
    """Memory that is about to be filled; a large piece begins at a page."""
    if size < _ALIGNED_FROM_BYTES:
        return np.empty(size, np.uint8).data
    whole = np.empty(size + _PAGE_BYTES, np.uint8).data
    start = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % _PAGE_BYTES
    return whole[start : start + size]
