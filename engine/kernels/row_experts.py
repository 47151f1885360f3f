"""Experts, or a dense MLP, on one row, from f32 to their weighted sum in one call.

What each computes, how its output is rounded and how outputs are summed is as in `experts`, bit for bit. Tasks are
those of `experts_integer`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.arrays import F32, I32, U8
from engine.kernels.atomic import mark_done, next_tasks, wait_for
from engine.kernels.compile import device, kernel
from engine.kernels.experts import ExpertShape, combine_rounded
from engine.kernels.experts_integer import MOST, add_bias, inner_values, round_outputs, tasks_of
from engine.kernels.integer_tile import KINDS, SCALES, row_tile
from engine.kernels.row_linear import rounded_row
from engine.kernels.threads import launch

UNWEIGHTED: F32 = np.empty((1, 0), np.float32)
ONLY = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)  # slots and ids where the arena is one MLP


@cache
def experts_share(kind_name: str, scale_name: str) -> Any:
    """What each thread does of a row's experts of one format, as a device function."""
    kind, scale_kind = KINDS.index(kind_name), SCALES.index(scale_name)

    @device
    def share(  # type: ignore[no-untyped-def]
        arena, floats, layout, code, parameters, q, scale, sums, slots, ids, h, h_scale, h_sums, given, given_scale,
        plain, counter, later, done, threads,
    ):  # fmt: skip
        """Outputs of the experts in slots[ids[0, j]] on the row of q, scale and sums, rounded, in line j of given and
        given_scale; the plain one of the first in plain [1, hidden] where that is not empty. h, h_scale and h_sums
        hold a line an expert; counter, later and done count tasks. Returns how many outputs of 32 were computed.
        """
        size, hidden, inner, biased = layout[0], layout[8], layout[9], layout[10]
        experts, blocks, inner_blocks = ids.shape[1], (hidden + 31) // 32, (inner + 31) // 32
        index, mine = np.arange(experts), 0
        inner_step, inner_tasks = tasks_of(experts, inner_blocks, threads)
        step, tasks = tasks_of(experts, blocks, threads)
        gate, up = np.zeros(MOST, np.float32), np.zeros(MOST, np.float32)
        both = np.empty(MOST, np.float32)
        while True:
            task, end = next_tasks(counter, experts * inner_tasks, threads)
            if task == end:
                break
            for one in range(task, end):
                expert, block = one // inner_tasks, one % inner_tasks * inner_step
                base, count = slots[ids[0, expert]] * size, min(32 * inner_step, inner - block * 32)
                for part in range((count + 15) // 16):
                    at = base + (block * 2 + part) * layout[6]
                    row_tile(
                        kind, scale_kind, arena, at + layout[1], scale.shape[1], q, scale, sums, index, 0, 1,
                        gate, part * 16, 16,
                    )  # fmt: skip
                    row_tile(
                        kind, scale_kind, arena, at + layout[2], scale.shape[1], q, scale, sums, index, 0, 1,
                        up, part * 16, 16,
                    )  # fmt: skip
                inner_values(
                    gate, up, floats, (base + layout[4]) // 4 + block * 32, inner, biased, code, parameters,
                    count, both, h, h_scale, h_sums, expert, block,
                )  # fmt: skip
                mark_done(done, expert, 1)
        wide = gate
        while True:
            task, end = next_tasks(later, experts * tasks, threads)
            if task == end:
                return mine
            for one in range(task, end):
                expert, block = one // tasks, one % tasks * step
                wait_for(done, expert, inner_tasks)
                base, count = slots[ids[0, expert]] * size, min(32 * step, hidden - block * 32)
                for part in range((count + 15) // 16):
                    row_tile(
                        kind, scale_kind, arena, base + layout[3] + (block * 2 + part) * layout[7],
                        inner_blocks, h, h_scale, h_sums, index, expert, 1, wide, part * 16, 16,
                    )  # fmt: skip
                add_bias(wide, floats, (base + layout[5]) // 4 + block * 32, biased, count)
                if plain.shape[1] > 0:
                    for i in range(count):
                        plain[0, block * 32 + i] = wide[i]
                else:
                    round_outputs(wide, 0, count, given, given_scale, expert, block)
                mine += (count + 31) // 32

    return share


@cache
def _row_experts(kind_name: str, scale_name: str) -> Any:
    share = experts_share(kind_name, scale_name)

    @kernel(parallel=True)
    def row_experts(arena, floats, layout, code, parameters, x, slots, ids, weights, out, threads):  # type: ignore[no-untyped-def]
        hidden, inner, experts = layout[8], layout[9], ids.shape[1]
        blocks, inner_blocks = (hidden + 31) // 32, (inner + 31) // 32
        q, scale, sums = rounded_row(x)
        h = np.empty((experts, inner_blocks * 32), np.int8)
        h_scale = np.empty((experts, inner_blocks), np.float32)
        h_sums = np.empty((experts, inner_blocks), np.int32)
        given = np.empty((experts, hidden), np.int16)
        given_scale = np.empty((experts, blocks), np.float32)
        counter, done = np.zeros(2, np.int64), np.zeros(experts, np.int64)
        plain = out if weights.shape[1] == 0 else np.empty((1, 0), np.float32)
        for _ in prange(threads):
            share(
                arena, floats, layout, code, parameters, q, scale, sums, slots, ids, h, h_scale, h_sums, given,
                given_scale, plain, counter, counter[1:], done, threads,
            )  # fmt: skip
        if weights.shape[1] > 0:
            combine_rounded(given, given_scale, weights, out)

    return row_experts


class RowExperts:
    """The experts in one arena uint8 [slots, shape.nbytes], on the integer path, applied to single rows."""

    __slots__ = ("_cost", "_given", "_hidden", "_run")

    def __init__(self, shape: ExpertShape, arena: U8) -> None:
        flat = arena.reshape(-1)
        self._hidden, self._cost = shape.hidden, 3 * shape.hidden * shape.intermediate
        self._run: Callable[..., None] = _row_experts(shape.packing.kind, shape.packing.scale)
        self._given = (flat, flat.view(np.float32), shape.layout, shape.activation.code, shape.parameters)

    def __call__(self, x: F32, slots: I32, ids: I32, weights: F32) -> F32:
        """Sum over j of weights[0, j] times what the expert in slots[ids[0, j]] makes of x f32 [1, hidden], as
        `combine` has it: f32 [1, hidden]. slots int32 [experts], within the arena; ids int32 and weights f32 [1, k].
        ValueError for other columns and for experts that there are not.
        """
        if x.shape[1] != self._hidden:
            raise ValueError(f"a row of {x.shape[1]} columns cannot go to experts of {self._hidden}")
        numbers = ids[0].tolist()
        if min(numbers) < 0 or max(numbers) >= len(slots):
            raise ValueError(f"experts must be below {len(slots)} and not negative: {numbers}")
        out = np.empty(x.shape, np.float32)
        with launch(self._cost * ids.shape[1]) as count:
            self._run(
                *self._given, np.ascontiguousarray(x), slots, np.ascontiguousarray(ids, np.int32),
                np.ascontiguousarray(weights, np.float32), out, count,
            )  # fmt: skip
        return out

    def mlp(self, x: F32) -> F32:
        """What the dense MLP that the arena is makes of x f32 [1, hidden], as `run_mlp` has it: f32 [1, hidden]."""
        return self(x, *ONLY, UNWEIGHTED)
