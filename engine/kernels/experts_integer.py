"""Many experts on many rows in one launch, on the integer path.

First, a task being some blocks of 32 intermediate values of one expert: gate and up for all its rows, activation,
rounding to int8. Then, a task being some blocks of 32 outputs of one expert: down for all its rows, rounding to int16
(or plain f32 for dense MLPs). A thread that finds no more tasks of the first kind begins with those of the second; it
waits only for an expert whose last first tasks are still in other hands.

Few rows take as long as reading the weights, and memory is idle while a thread activates and rounds: so a task is as
many blocks as leave enough tasks, and all of its weights are read before what comes after. Many rows take their weights
block by block instead, which then come from the cache for all but the first of them.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.kernels.activation import activate
from engine.kernels.atomic import mark_done, next_tasks, wait_for
from engine.kernels.compile import device, kernel
from engine.kernels.integer_tile import KINDS, SCALES, WIDE, integer_tile
from engine.kernels.quantize import quantize_group

TOGETHER = 8  # blocks of 32 values that make a task, at most
MOST = 32 * TOGETHER


@kernel
def by_slot(slot, slots):  # type: ignore[no-untyped-def]
    """Pairs in the order of their slots (stable), and the bounds of each run: int64 [P], int64 [runs + 1]."""
    pairs = len(slot)
    ends = np.zeros(slots + 1, np.int64)
    for p in range(pairs):
        ends[slot[p] + 1] += 1
    bounds = np.empty(min(pairs, slots) + 1, np.int64)
    bounds[0] = 0
    runs = 0
    for s in range(slots):
        if ends[s + 1] > 0:
            runs += 1
            bounds[runs] = bounds[runs - 1] + ends[s + 1]
        ends[s + 1] += ends[s]
    order = np.empty(pairs, np.int64)
    for p in range(pairs):
        order[ends[slot[p]]] = p
        ends[slot[p]] += 1
    return order, bounds[: runs + 1]


@device
def tasks_of(runs, blocks, threads):  # type: ignore[no-untyped-def]
    """How many of the `blocks` of 32 values of each of `runs` experts make a task, so that every thread has some, and
    how many tasks an expert is then."""
    together = TOGETHER
    while together > 1 and runs * ((blocks + together - 1) // together) < 8 * threads:
        together //= 2
    return together, (blocks + together - 1) // together


@device
def inner_values(  # type: ignore[no-untyped-def]
    gate, up, floats, bias, inner, biased, code, parameters, count, both, h, h_scale, h_sums, line, block
):
    """Makes `count` values of the inner width from gate and up, both f32, and keeps them in line `line` of h int8, from
    block `block` on, with their scales and sums. Biases, where there are any, stand in `floats` from `bias` on, those
    of up after all of gate's.
    """
    if biased:
        for i in range(count):
            gate[i] += floats[bias + i]
            up[i] += floats[bias + inner + i]
    activate(code, parameters, gate, up, count, both)
    for start in range(0, count, 32):
        at = block + start // 32
        h_scale[line, at], h_sums[line, at] = quantize_group(
            both, start, min(32, count - start), np.float32(127), h, line * h.shape[1] + at * 32, 32
        )


@device
def add_bias(wide, floats, bias, biased, count):  # type: ignore[no-untyped-def]
    """Adds the biases that stand in `floats` from `bias` on, where there are any, to `count` values of `wide` f32."""
    if biased:
        for i in range(count):
            wide[i] += floats[bias + i]


@device
def round_outputs(wide, start, count, out, scale, line, block):  # type: ignore[no-untyped-def]
    """Rounds `count` values of wide.flat f32 from `start` on to line `line` of out int16, from block `block` on, and
    keeps their scales."""
    for first in range(0, count, 32):
        at, some = block + first // 32, min(32, count - first)
        scale[line, at], _sum = quantize_group(
            wide, start + first, some, np.float32(32767), out, line * out.shape[1] + at * 32, some
        )


@cache
def integer_experts(kind_name: str, scale_name: str) -> Any:
    """The kernel for one format. `layout` int64 [10]: bytes an expert; where gate, up, down and their biases
    start in it; bytes a panel of gate and up, and of down; hidden; intermediate; whether there are biases.
    """
    kind, scale_kind = KINDS.index(kind_name), SCALES.index(scale_name)

    @kernel(parallel=True)
    def experts(  # type: ignore[no-untyped-def]
        arena, floats, layout, code, parameters, q, scale, sums, slot, row, out16, out_scale, out32, threads
    ):  # fmt: skip
        size, hidden, inner, biased = layout[0], layout[8], layout[9], layout[10]
        order, bounds = by_slot(slot, len(arena) // size)
        runs = len(bounds) - 1
        pairs = len(slot)
        sorted_row = np.empty(pairs, np.int64)
        for p in range(pairs):
            sorted_row[p] = row[order[p]]
        same = np.arange(pairs)
        groups, inner_groups = (hidden + 31) // 32, (inner + 31) // 32
        h = np.empty((pairs, inner_groups * 32), np.int8)
        h_scale = np.empty((pairs, inner_groups), np.float32)
        h_sums = np.empty((pairs, inner_groups), np.int32)
        counter = np.zeros(2, np.int64)
        later = counter[1:]
        done = np.zeros(runs, np.int64)
        inner_step, inner_tasks = tasks_of(runs, inner_groups, threads)
        step, tasks = tasks_of(runs, groups, threads)
        for _ in prange(threads):
            gate = np.zeros((WIDE, MOST), np.float32)
            up = np.zeros((WIDE, MOST), np.float32)
            both = np.empty(MOST, np.float32)
            while True:
                task, end = next_tasks(counter, runs * inner_tasks, threads)
                if task == end:
                    break
                for one in range(task, end):
                    run, begin = one // inner_tasks, one % inner_tasks * inner_step
                    base, rows = slot[order[bounds[run]]] * size, bounds[run + 1] - bounds[run]
                    stop, width = min(begin + inner_step, inner_groups), inner_step if rows <= WIDE else 1
                    for block in range(begin, stop, width):
                        count = min(32 * min(width, stop - block), inner - block * 32)
                        for first in range(bounds[run], bounds[run + 1], WIDE):
                            some = min(WIDE, bounds[run + 1] - first)
                            for part in range((count + 15) // 16):
                                at = base + (block * 2 + part) * layout[6]
                                integer_tile(
                                    kind, scale_kind, arena, at + layout[1], groups, q, scale, sums, sorted_row,
                                    first, some, gate, part * 16, MOST,
                                )  # fmt: skip
                                integer_tile(
                                    kind, scale_kind, arena, at + layout[2], groups, q, scale, sums, sorted_row,
                                    first, some, up, part * 16, MOST,
                                )  # fmt: skip
                            for t in range(some):
                                inner_values(
                                    gate[t], up[t], floats, (base + layout[4]) // 4 + block * 32, inner, biased, code,
                                    parameters, count, both, h, h_scale, h_sums, first + t, block,
                                )  # fmt: skip
                    mark_done(done, run, 1)
            wide = gate
            while True:
                task, end = next_tasks(later, runs * tasks, threads)
                if task == end:
                    break
                for one in range(task, end):
                    run, begin = one // tasks, one % tasks * step
                    wait_for(done, run, inner_tasks)
                    base, rows = slot[order[bounds[run]]] * size, bounds[run + 1] - bounds[run]
                    stop, width = min(begin + step, groups), step if rows <= WIDE else 1
                    for block in range(begin, stop, width):
                        count = min(32 * min(width, stop - block), hidden - block * 32)
                        for first in range(bounds[run], bounds[run + 1], WIDE):
                            some = min(WIDE, bounds[run + 1] - first)
                            for part in range((count + 15) // 16):
                                integer_tile(
                                    kind, scale_kind, arena, base + layout[3] + (block * 2 + part) * layout[7],
                                    inner_groups, h, h_scale, h_sums, same, first, some, wide, part * 16, MOST,
                                )  # fmt: skip
                            for t in range(some):
                                pair = order[first + t]
                                add_bias(wide[t], floats, (base + layout[5]) // 4 + block * 32, biased, count)
                                if len(out32) > 0:
                                    for i in range(count):
                                        out32[pair, block * 32 + i] = wide[t, i]
                                else:
                                    round_outputs(wide, t * MOST, count, out16, out_scale, pair, block)

    return experts
