"""Large pieces of memory spread over the nodes of a machine with several memories (NUMA).

Weights are read by all threads. From where they were first written, which is one node as a rule, half the threads of
two sockets would read them across the link between these, and one memory would do the work of two. Pages dealt out in
turn are read at the speed of all memories together. On a machine of one node, and where the user says how (`numactl`),
nothing is done.
"""

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

STATUS = Path("/proc/self/status")
CALLS = {"x86_64": (237, 239), "aarch64": (235, 236)}
"""The numbers of the system calls mbind and get_mempolicy, which the C library has no functions for."""
DEFAULT, INTERLEAVE = 0, 3  # from linux/mempolicy.h
WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
MOST_NODES = 1024


@cache
def usable() -> tuple[int, ...]:
    """The nodes whose memory this process may take; none where it cannot be said, or the user chose a policy."""
    if sys.platform != "linux" or platform.machine() not in CALLS:
        return ()
    mode = ctypes.c_int(-1)
    failed = ctypes.CDLL(None).syscall(CALLS[platform.machine()][1], ctypes.byref(mode), None, 0, None, 0)
    if failed or mode.value != DEFAULT:
        return ()
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return ()
    listed = next((line.split()[1] for line in lines if line.startswith("Mems_allowed_list:")), "")
    return numbers(listed)


def numbers(listed: str) -> tuple[int, ...]:
    """A list as the system writes it, such as 0-2,5."""
    found: list[int] = []
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def spread(address: int, length: int, nodes: tuple[int, ...] | None = None) -> bool:
    """Has the pages of a mapping that were not written yet dealt out to `nodes` (None: all that may be used); whether
    that was done. `address` is a page's."""
    chosen = usable() if nodes is None else nodes
    if not chosen or (nodes is None and len(chosen) < 2) or max(chosen) >= MOST_NODES:
        return False
    mask = (ctypes.c_ulong * (MOST_NODES // WORD_BITS))()
    for node in chosen:
        mask[node // WORD_BITS] |= 1 << node % WORD_BITS
    bind = CALLS[platform.machine()][0]
    arguments = (
        ctypes.c_void_p(address),
        ctypes.c_ulong(length),
        INTERLEAVE,
        mask,
        ctypes.c_ulong(MOST_NODES + 1),
        0,
    )
    return not ctypes.CDLL(None).syscall(bind, *arguments)
