"""Memory for chunks: kept for the next one, and begun at a good place in a page.

glibc gives freed memory back to the kernel, which hands it out again zeroed, page by page: for buffers of a
chunk's size, used once and freed, that is half of the system time of receiving a model. Here it is told to
keep some.

Where a large buffer begins is chance, and how fast the kernel copies into it from the page cache depends on that.
Measured on an EPYC, 1 MiB from the start of a page: 56 us into the start of a page, 130 to 330 us into 8 to 16 bytes
further (each store falls just behind a load of the same place in its page), 51 us into 48 bytes after a line of the
cache that is not the page's first.
"""

import ctypes
import sys
from contextlib import suppress

import numpy as np

KEPT_BYTES = 64 << 20
_LARGEST_KEPT_BYTES = 4 << 20
_PAGE_BYTES = 4096
_BEGIN_BYTES = 240
"""Where in a page a large buffer begins."""
_ALIGNED_FROM_BYTES = 64 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_empty, _BYTE = np.empty, np.dtype(np.uint8)
_addressof, _from_buffer = ctypes.addressof, ctypes.c_char.from_buffer


def keep_freed_memory() -> None:
    """Has this process keep up to 64 MiB of freed memory, in pieces of up to 4 MiB; nothing where libc is not
    glibc."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another libc has no mallopt
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)


def buffer_of(size: int) -> memoryview:
    """Memory that is about to be filled; a large piece begins where it is filled fastest."""
    if size < _ALIGNED_FROM_BYTES:
        return _empty(size, _BYTE).data
    whole = _empty(size + _PAGE_BYTES, _BYTE).data
    start = (_BEGIN_BYTES - _addressof(_from_buffer(whole))) % _PAGE_BYTES
    return whole[start : start + size]
