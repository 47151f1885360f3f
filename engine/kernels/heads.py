"""Rows that differ from head to head, each times its head's own matrix: into latent attention and out of it.

The packed matrix is a stack with one part a head; a panel of part h reads row n · heads + h of the flattened
input. The arithmetic is that of `matmul`.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.arrays import F32, aligned
from engine.formats import GROUP
from engine.kernels.atomic import next_task
from engine.kernels.compile import kernel
from engine.kernels.float_tile import FLOAT_KINDS, FLOAT_ROWS, FLOAT_WIDE, float_tile
from engine.kernels.integer_tile import KINDS, SCALES, WIDE, integer_tile
from engine.kernels.matrix import Matrix, padded_columns
from engine.kernels.packing import CHUNK
from engine.kernels.rows import quantize_rows
from engine.kernels.threads import launch


@cache
def _integer(kind_name: str, scale_name: str) -> Any:
    kind, scale_kind = KINDS.index(kind_name), SCALES.index(scale_name)

    @kernel(parallel=True)
    def by_head(data, panel_bytes, groups, head_panels, q, scale, sums, out, threads):  # type: ignore[no-untyped-def]
        count, heads, rows = out.shape
        counter = np.zeros(1, np.int64)
        for _ in prange(threads):
            scratch = np.empty((WIDE, 16), np.float32)
            while True:
                head = next_task(counter)
                if head >= heads:
                    break
                index = np.arange(count) * heads + head
                for panel in range(head_panels):
                    at = (head * head_panels + panel) * panel_bytes
                    for first in range(0, count, WIDE):
                        some = min(WIDE, count - first)
                        integer_tile(
                            kind, scale_kind, data, at, groups, q, scale, sums, index, first, some,
                            scratch, 0, 16,
                        )  # fmt: skip
                        for t in range(some):
                            for r in range(min(16, rows - panel * 16)):
                                out[first + t, head, panel * 16 + r] = scratch[t, r]

    return by_head


@cache
def _floating(kind_name: str) -> Any:
    kind = FLOAT_KINDS.index(kind_name)

    @kernel(parallel=True)
    def by_head(data, panel_bytes, chunks, block, head_panels, x, out, threads):  # type: ignore[no-untyped-def]
        count, heads, rows = out.shape
        counter = np.zeros(1, np.int64)
        for _ in prange(threads):
            scratch = np.empty((FLOAT_WIDE, FLOAT_ROWS), np.float32)
            while True:
                head = next_task(counter)
                if head >= heads:
                    break
                index = np.arange(count) * heads + head
                for panel in range(head_panels):
                    at = (head * head_panels + panel) * panel_bytes
                    for first in range(0, count, FLOAT_WIDE):
                        some = min(FLOAT_WIDE, count - first)
                        float_tile(
                            kind, data, at, chunks, block, x, index, first, some, scratch, 0, FLOAT_ROWS
                        )
                        for t in range(some):
                            for r in range(min(FLOAT_ROWS, rows - panel * FLOAT_ROWS)):
                                out[first + t, head, panel * FLOAT_ROWS + r] = scratch[t, r]

    return by_head


def matmul_heads(x: F32, w: Matrix) -> F32:
    """x [N, H, K] times the stack `w` of H matrices [M, K], row of head h by matrix h: f32 [N, H, M].

    ValueError when heads or columns differ, or the parts are not all of one size.
    """
    count, heads, cols = x.shape
    if len(w.parts) != heads or w.cols != cols or len({*w.parts}) != 1:
        raise ValueError(
            f"rows {list(x.shape)} cannot be multiplied with a stack {list(w.parts)} of {w.cols} columns"
        )
    out = aligned((count, heads, w.parts[0]), np.float32)
    if count == 0:
        return out
    flat = np.ascontiguousarray(x).reshape(count * heads, cols)
    head_panels = w.packing.panels(w.parts[0])
    panel_bytes = w.packing.panel_bytes(cols)
    if w.integer:
        rows = quantize_rows(flat)
        run = _integer(w.packing.kind, w.packing.scale)
        groups = -(-cols // GROUP)
        with launch(count * w.rows * cols) as threads:
            run(w.data, panel_bytes, groups, head_panels, rows.q, rows.scale, rows.sums, out, threads)
    else:
        block = max(1, w.packing.block // CHUNK)
        with launch(count * w.rows * cols) as threads:
            _floating(w.packing.kind)(
                w.data,
                panel_bytes,
                -(-cols // CHUNK),
                block,
                head_panels,
                padded_columns(flat),
                out,
                threads,
            )
    return out
