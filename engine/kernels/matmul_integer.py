"""Activation rows times packed integer matrices, all panels in one launch."""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.kernels.atomic import next_tasks
from engine.kernels.compile import kernel
from engine.kernels.integer_tile import KINDS, SCALES, WIDE, integer_pair, integer_tile


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
            scratch = np.empty((2, WIDE, 16), np.float32)
            index = np.arange(count)
            while True:
                task, end = next_tasks(counter, panels, threads)
                if task == end:
                    break
                for panel in range(task, end, 2):
                    both = min(2, end - panel)
                    for first in range(0, count, WIDE):
                        some = min(WIDE, count - first)
                        if some == 1 and both == 2:
                            integer_pair(
                                kind, scale_kind, data, panel * panel_bytes, panel_bytes, groups, q, scale, sums,
                                index, first, scratch, 0, WIDE * 16,
                            )  # fmt: skip
                        else:
                            for one in range(both):
                                integer_tile(
                                    kind, scale_kind, data, (panel + one) * panel_bytes, groups, q, scale, sums,
                                    index, first, some, scratch, one * WIDE * 16, 16,
                                )  # fmt: skip
                        for one in range(both):
                            place = places[panel + one]
                            for t in range(some):
                                at = place[0] * count + (first + t) * place[1] + place[2]
                                for r in range(place[3]):
                                    out[at + r] = scratch[one, t, r]

    return matmul
