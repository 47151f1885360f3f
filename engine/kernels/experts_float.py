"""Many experts on many rows in two launches, on the float path: gate, up and activation; then down."""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.kernels.activation import activate
from engine.kernels.atomic import next_task
from engine.kernels.compile import kernel
from engine.kernels.experts_integer import by_slot
from engine.kernels.float_tile import FLOAT_KINDS, FLOAT_ROWS, FLOAT_WIDE, float_tile


@cache
def float_experts(kind_name: str) -> Any:
    """The kernel for one format; `layout` as in `integer_experts`. A task is 16 values of one expert for all
    its rows.
    """
    kind = FLOAT_KINDS.index(kind_name)

    @kernel(parallel=True)
    def experts(arena, floats, layout, scale_block, code, parameters, x, slot, row, out, threads):  # type: ignore[no-untyped-def]
        size, hidden, inner, biased = layout[0], layout[8], layout[9], layout[10]
        order, bounds = by_slot(slot, len(arena) // size)
        runs = len(bounds) - 1
        pairs = len(slot)
        sorted_row = np.empty(pairs, np.int64)
        for p in range(pairs):
            sorted_row[p] = row[order[p]]
        same = np.arange(pairs)
        chunks, inner_chunks, blocks = x.shape[1] // 16, (inner + 15) // 16, (hidden + 15) // 16
        h = np.zeros((pairs, inner_chunks * 16), np.float32)
        counter = np.zeros(2, np.int64)
        later = counter[1:]
        for _ in prange(threads):
            gate = np.zeros((FLOAT_WIDE, 16), np.float32)
            up = np.zeros((FLOAT_WIDE, 16), np.float32)
            while True:
                task = next_task(counter)
                if task >= runs * inner_chunks:
                    break
                run, block = task // inner_chunks, task % inner_chunks
                base = slot[order[bounds[run]]] * size
                count = min(16, inner - block * 16)
                for first in range(bounds[run], bounds[run + 1], FLOAT_WIDE):
                    some = min(FLOAT_WIDE, bounds[run + 1] - first)
                    for part in range((count + FLOAT_ROWS - 1) // FLOAT_ROWS):
                        at = base + (block * (16 // FLOAT_ROWS) + part) * layout[6]
                        float_tile(
                            kind, arena, at + layout[1], chunks, scale_block, x, sorted_row, first, some,
                            gate,
                            part * FLOAT_ROWS, 16,
                        )  # fmt: skip
                        float_tile(
                            kind, arena, at + layout[2], chunks, scale_block, x, sorted_row, first, some, up,
                            part * FLOAT_ROWS, 16,
                        )  # fmt: skip
                    for t in range(some):
                        if biased:
                            for i in range(count):
                                gate[t, i] += floats[(base + layout[4]) // 4 + block * 16 + i]
                                up[t, i] += floats[(base + layout[4]) // 4 + inner + block * 16 + i]
                        activate(code, parameters, gate[t], up[t], count, h[first + t, block * 16 :])
        for _ in prange(threads):
            wide = np.empty((FLOAT_WIDE, 16), np.float32)
            while True:
                task = next_task(later)
                if task >= runs * blocks:
                    break
                run, block = task // blocks, task % blocks
                base = slot[order[bounds[run]]] * size
                count = min(16, hidden - block * 16)
                for first in range(bounds[run], bounds[run + 1], FLOAT_WIDE):
                    some = min(FLOAT_WIDE, bounds[run + 1] - first)
                    for part in range((count + FLOAT_ROWS - 1) // FLOAT_ROWS):
                        at = base + layout[3] + (block * (16 // FLOAT_ROWS) + part) * layout[7]
                        float_tile(
                            kind,
                            arena,
                            at,
                            inner_chunks,
                            scale_block,
                            h,
                            same,
                            first,
                            some,
                            wide,
                            part * FLOAT_ROWS,
                            16,
                        )
                    for t in range(some):
                        for i in range(count):
                            value = wide[t, i]
                            if biased:
                                value += floats[(base + layout[5]) // 4 + block * 16 + i]
                            out[order[first + t], block * 16 + i] = value

    return experts
