"""Activation rows in f32 times matrices of stored floats, all panels in one launch."""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.kernels.atomic import next_task
from engine.kernels.compile import kernel
from engine.kernels.float_tile import BLOCKED, FLOAT_KINDS, FLOAT_ROWS, FLOAT_WIDE, float_tile

TOGETHER = 4  # panels a thread takes at a time
# Rows that all of them take before further ones, where the second cache holds no more.
ROUND = FLOAT_WIDE if BLOCKED else 1 << 30


@cache
def float_matmul(kind_name: str) -> Any:
    """The kernel for one format: (data, panel_bytes, chunks, block, places, x, out, threads); see
    `integer_matmul`.
    """
    kind = FLOAT_KINDS.index(kind_name)

    @kernel(parallel=True)
    def matmul(data, panel_bytes, chunks, block, places, x, out, threads):  # type: ignore[no-untyped-def]
        panels, count = len(places), x.shape[0]
        counter = np.zeros(1, np.int64)
        for _ in prange(threads):
            scratch = np.empty((FLOAT_WIDE, FLOAT_ROWS), np.float32)
            index = np.arange(count)
            while True:
                task = next_task(counter) * TOGETHER
                if task >= panels:
                    break
                for begin in range(0, count, ROUND):
                    for panel in range(task, min(task + TOGETHER, panels)):
                        for first in range(begin, min(count, begin + ROUND), FLOAT_WIDE):
                            some = min(FLOAT_WIDE, count - first)
                            float_tile(
                                kind, data, panel * panel_bytes, chunks, block, x, index, first, some, scratch, 0,
                                FLOAT_ROWS,
                            )  # fmt: skip
                            for t in range(some):
                                start = places[panel, 0] * count + places[panel, 2]
                                at = start + (first + t) * places[panel, 1]
                                for r in range(places[panel, 3]):
                                    out[at + r] = scratch[t, r]

    return matmul
