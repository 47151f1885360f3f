"""Keeping freed memory for the next chunk.

glibc gives freed memory back to the kernel, which hands it out again zeroed, page by page: for buffers of a
chunk's size, used once and freed, that is half of the system time of receiving a model. Here it is told to
keep some.
"""

import ctypes
import sys
from contextlib import suppress

KEPT_BYTES = 64 << 20
_LARGEST_KEPT_BYTES = 4 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed_memory() -> None:
    """Has this process keep up to 64 MiB of freed memory, in pieces of up to 4 MiB; nothing where libc is not
    glibc."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another libc has no mallopt
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
