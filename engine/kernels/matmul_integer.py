"""Activation rows times packed integer matrices, all panels in one launch."""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.kernels.atomic import next_tasks
from engine.kernels.compile import kernel
from engine.kernels.integer_tile import KINDS, SCALES, WIDE, integer_tile


@cache
def integer_matmul(kind_name: str, scale_name: str) -> Any:
    """The kernel for one format: (data, panel_bytes, groups, places, q, scale, sums, out, threads).

    `places` int64 [panels, 4] says where the outputs of a panel go: first output of its part, rows of the
    part, first row of the panel within the part, rows of the panel. Each part is an own array [N, rows of the
    part] within `out`.
    """
    kind, scale_kind = KINDS.index(kind_name), SCALES.index(scale_name)

    @kernel(parallel=True)
    def matmul(data, panel_bytes, groups, places, q, scale, sums, out, threads):  # type: ignore[no-untyped-def]
        panels, count = len(places), q.shape[0]
        counter = np.zeros(1, np.int64)
        for _ in prange(threads):
            scratch = np.empty(WIDE * 16, np.float32)
            index = np.arange(count)
            while True:
                task, end = next_tasks(counter, panels, threads)
                if task == end:
                    break
                for panel in range(task, end):
                    rows, width = places[panel, 3], places[panel, 1]
                    for first in range(0, count, WIDE):
                        some = min(WIDE, count - first)
                        at = places[panel, 0] * count + first * width + places[panel, 2]
                        full = some == WIDE and rows == 16  # goes where it belongs at once
                        place, stride = (at, width) if full else (0, 16)
                        integer_tile(
                            kind, scale_kind, data, panel * panel_bytes, groups, q, scale, sums, index, first, some,
                            out if full else scratch, place, stride,
                        )  # fmt: skip
                        if not full:
                            for t in range(some):
                                for r in range(rows):
                                    out[at + t * width + r] = scratch[t * 16 + r]

    return matmul
