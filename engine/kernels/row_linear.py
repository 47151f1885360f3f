"""One activation row times a packed integer matrix, from f32 to f32 in one call: what a token decoded alone takes.

Norm, rounding, product, bias and sum with the residual stream are those of `norms`, `rows` and `matrix`, bit for
bit; what is saved is a call for each.
"""

from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import prange

from engine.arrays import F32
from engine.kernels.atomic import next_tasks
from engine.kernels.compile import device, kernel
from engine.kernels.integer_tile import KINDS, SCALES, row_tile
from engine.kernels.matrix import Matrix
from engine.kernels.norms import norm_lines
from engine.kernels.rows import round_rows
from engine.kernels.threads import launch

NONE: F32 = np.empty(0, np.float32)
NOTHING: F32 = np.empty((0, 0), np.float32)


class RowNorm(NamedTuple):
    """A norm as the kernels for one row take it; without a weight, none is taken."""

    weight: F32 = NONE
    epsilon: np.float32 = np.float32(0)
    plus: np.float32 = np.float32(0)  # added to the weight


UNNORMED = RowNorm()


@device
def normed_row(x, weight, epsilon, plus):  # type: ignore[no-untyped-def]
    """Row x f32 [1, K], normed as a whole where there is a weight."""
    if len(weight) == 0:
        return x
    out = np.empty(x.shape, np.float32)
    norm_lines(x, weight, epsilon, plus, out)
    return out


@device
def rounded_row(x):  # type: ignore[no-untyped-def]
    """Row x f32 [1, K] as `Rows`: q, scale and sums."""
    groups = (x.shape[1] + 31) // 32
    q, scale = np.empty((1, groups * 32), np.int8), np.empty((1, groups), np.float32)
    sums = np.empty((1, groups), np.int32)
    round_rows(x, q, scale, sums)
    return q, scale, sums


@cache
def panels_share(kind_name: str, scale_name: str) -> Any:
    """What each thread does of a row times a packed matrix of one format, as a device function."""
    kind, scale_kind = KINDS.index(kind_name), SCALES.index(scale_name)

    @device
    def share(data, panel_bytes, places, q, scale, sums, bias, added, out, counter, threads):  # type: ignore[no-untyped-def]
        """Panels of out [1, rows] = the row of q, scale and sums times the matrix, plus bias [rows] and added
        [1, rows] where there are any, as long as `counter` has some. Returns how many."""
        panels, groups, mine = len(places), scale.shape[1], 0
        index, scratch = np.zeros(1, np.int64), np.empty(16, np.float32)
        while True:
            task, end = next_tasks(counter, panels, threads)
            if task == end:
                return mine
            for panel in range(task, end):
                row_tile(
                    kind, scale_kind, data, panel * panel_bytes, groups, q, scale, sums, index, 0, 1, scratch, 0, 16,
                )  # fmt: skip
                at = places[panel, 0] + places[panel, 2]
                for r in range(places[panel, 3]):
                    value = scratch[r]
                    if len(bias) > 0:
                        value += bias[at + r]
                    if added.shape[1] > 0:
                        value += added[0, at + r]
                    out[0, at + r] = value
            mine += end - task

    return share


@cache
def _row_linear(kind_name: str, scale_name: str) -> Any:
    share = panels_share(kind_name, scale_name)

    @kernel(parallel=True)
    def row_linear(  # type: ignore[no-untyped-def]
        x, norm, epsilon, plus, data, panel_bytes, places, bias, added, out, threads
    ):
        q, scale, sums = rounded_row(normed_row(x, norm, epsilon, plus))
        counter = np.zeros(1, np.int64)
        for _ in prange(threads):
            share(data, panel_bytes, places, q, scale, sums, bias, added, out, counter, threads)

    return row_linear


class RowLinear:
    """A packed integer matrix, or several stacked, with their biases: applied to single rows."""

    __slots__ = ("_cols", "_ends", "_given", "_rows", "_run", "bias", "matrix", "panel_bytes", "work")

    def __init__(self, matrix: Matrix, bias: F32 | None) -> None:
        self._rows, self._cols, self.work = matrix.rows, matrix.cols, matrix.rows * matrix.cols
        self._ends = list(accumulate(matrix.parts, initial=0))
        self._run = _row_linear(matrix.packing.kind, matrix.packing.scale)
        self.matrix, self.bias = matrix, NONE if bias is None else bias
        self.panel_bytes = matrix.packing.panel_bytes(matrix.cols)
        self._given = (matrix.data, self.panel_bytes, matrix.places, self.bias)

    def __call__(self, x: F32, norm: RowNorm | None = None, added: F32 | None = None) -> F32:
        """x f32 [1, cols], normed if there is a `norm` -> f32 [1, rows], plus `added` [1, rows]; parts lie side by
        side. ValueError when the columns differ.
        """
        if x.shape[1] != self._cols:
            raise ValueError(
                f"a row of {x.shape[1]} columns cannot be multiplied with a matrix of {self._cols}"
            )
        out = np.empty((1, self._rows), np.float32)
        with launch(self.work) as count:
            self._run(
                np.ascontiguousarray(x), *(norm or UNNORMED), *self._given, NOTHING if added is None else added, out,
                count,
            )  # fmt: skip
        return out

    def parts(self, x: F32, norm: RowNorm | None = None) -> list[F32]:
        """The same for each of the matrices that are stacked: f32 [1, rows of the part], contiguous."""
        out = self(x, norm)
        return [out[:, first:last] for first, last in pairwise(self._ends)]
