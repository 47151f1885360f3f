"""Many experts on many rows in one launch, on the integer path.

First, a task being 32 intermediate values of one expert: gate and up for all its rows, activation, rounding to
int8. Then, a task being 32 outputs of one expert: down for all its rows, rounding to int16 (or plain f32 for
dense MLPs). A thread that finds no more tasks of the first kind begins with those of the second; it waits only
for an expert whose last first tasks are still in other hands.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.kernels.activation import activate
from engine.kernels.atomic import give_way, mark_done, next_tasks, tasks_done
from engine.kernels.compile import device, kernel
from engine.kernels.integer_tile import KINDS, SCALES, WIDE, integer_tile
from engine.kernels.quantize import quantize_group


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
def inner_block(  # type: ignore[no-untyped-def]
    gate, up, floats, bias, inner, biased, code, parameters, count, both, h, at
):
    """Makes `count` values of the inner width from gate and up f32 [32] and keeps them as int8 in h from `at` on: their
    scale and sum. Biases, where there are any, stand in `floats` from `bias` on, those of up after all of gate's.
    """
    if biased:
        for i in range(count):
            gate[i] += floats[bias + i]
            up[i] += floats[bias + inner + i]
    activate(code, parameters, gate, up, count, both)
    return quantize_group(both, 0, count, np.float32(127), h, at, 32)


@device
def add_bias(wide, floats, bias, biased, count):  # type: ignore[no-untyped-def]
    """Adds the biases that stand in `floats` from `bias` on, where there are any, to `count` values of f32 [32]."""
    if biased:
        for i in range(count):
            wide[i] += floats[bias + i]


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
        groups, inner_groups, blocks = (hidden + 31) // 32, (inner + 31) // 32, (hidden + 31) // 32
        h = np.empty((pairs, inner_groups * 32), np.int8)
        h_scale = np.empty((pairs, inner_groups), np.float32)
        h_sums = np.empty((pairs, inner_groups), np.int32)
        counter = np.zeros(2, np.int64)
        later = counter[1:]
        done = np.zeros(runs, np.int64)
        for _ in prange(threads):
            gate = np.zeros((WIDE, 32), np.float32)
            up = np.zeros((WIDE, 32), np.float32)
            both = np.empty(32, np.float32)
            while True:
                task, end = next_tasks(counter, runs * inner_groups, threads)
                if task == end:
                    break
                for one in range(task, end):
                    run, block = one // inner_groups, one % inner_groups
                    base = slot[order[bounds[run]]] * size
                    count = min(32, inner - block * 32)
                    for first in range(bounds[run], bounds[run + 1], WIDE):
                        some = min(WIDE, bounds[run + 1] - first)
                        for part in range((count + 15) // 16):
                            at = base + (block * 2 + part) * layout[6]
                            integer_tile(
                                kind, scale_kind, arena, at + layout[1], groups, q, scale, sums, sorted_row,
                                first, some, gate, part * 16, 32,
                            )  # fmt: skip
                            integer_tile(
                                kind, scale_kind, arena, at + layout[2], groups, q, scale, sums, sorted_row,
                                first, some, up, part * 16, 32,
                            )  # fmt: skip
                        for t in range(some):
                            h_scale[first + t, block], h_sums[first + t, block] = inner_block(
                                gate[t], up[t], floats, (base + layout[4]) // 4 + block * 32, inner, biased, code,
                                parameters, count, both, h, ((first + t) * inner_groups + block) * 32,
                            )  # fmt: skip
                    mark_done(done, run)
            wide = gate
            while True:
                task, end = next_tasks(later, runs * blocks, threads)
                if task == end:
                    break
                for one in range(task, end):
                    run, block = one // blocks, one % blocks
                    while tasks_done(done, run) < inner_groups:
                        give_way()  # another thread is at its last block of this expert
                    base = slot[order[bounds[run]]] * size
                    count = min(32, hidden - block * 32)
                    for first in range(bounds[run], bounds[run + 1], WIDE):
                        some = min(WIDE, bounds[run + 1] - first)
                        for part in range((count + 15) // 16):
                            integer_tile(
                                kind, scale_kind, arena, base + layout[3] + (block * 2 + part) * layout[7],
                                inner_groups, h, h_scale, h_sums, same, first, some, wide, part * 16, 32,
                            )  # fmt: skip
                        for t in range(some):
                            pair = order[first + t]
                            add_bias(wide[t], floats, (base + layout[5]) // 4 + block * 32, biased, count)
                            if len(out32) > 0:
                                for i in range(count):
                                    out32[pair, block * 32 + i] = wide[t, i]
                            else:
                                out_scale[pair, block], _sum = quantize_group(
                                    wide, t * 32, count, np.float32(32767), out16,
                                    pair * hidden + block * 32, count,
                                )  # fmt: skip

    return experts
