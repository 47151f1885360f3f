"""The router on one row, from the residual stream to ids and weights, in one call.

Norm, logits, scores and choice are those of `norms`, `matrix` and `elementwise`, bit for bit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import prange

from engine.arrays import F32, I32
from engine.kernels.atomic import next_task
from engine.kernels.compile import device, kernel
from engine.kernels.elementwise import choose_best
from engine.kernels.float_tile import FLOAT_KINDS, FLOAT_ROWS, row_float_tile
from engine.kernels.lanes import lane_sum
from engine.kernels.matmul_float import TOGETHER
from engine.kernels.matrix import Matrix
from engine.kernels.norms import norm_lines, softmax_lines
from engine.kernels.packing import CHUNK
from engine.kernels.row_linear import NONE, RowNorm
from engine.kernels.scalar import sigmoid
from engine.kernels.threads import gate, threads

TINY = np.float32(1e-20)  # added to the sum of sigmoids that weights are divided by


@device
def choose(logits, sigmoids, correction, normalise, factor, ids, weights):  # type: ignore[no-untyped-def]
    """The k best of logits f32 [1, E] and their weights, as `SoftmaxRouter` and `SigmoidRouter` have them."""
    scores = np.empty(logits.shape, np.float32)
    if sigmoids:
        for e in range(logits.shape[1]):
            scores[0, e] = sigmoid(logits[0, e])
    else:
        softmax_lines(logits, scores)
    steered = scores
    if len(correction) > 0:
        steered = np.empty(logits.shape, np.float32)
        for e in range(logits.shape[1]):
            steered[0, e] = scores[0, e] + correction[e]
    choose_best(steered, ids, weights)
    k = ids.shape[1]
    for j in range(k):
        weights[0, j] = scores[0, ids[0, j]]
    total = lane_sum(weights, 0, k)
    if sigmoids:
        total += TINY
    for j in range(k):
        if normalise:
            weights[0, j] /= total
        weights[0, j] *= factor


@cache
def logits_share(kind_name: str) -> Any:
    """What each thread does of the logits of a router of one format, as a device function."""
    kind = FLOAT_KINDS.index(kind_name)

    @device
    def share(data, panel_bytes, block, normed, experts, bias, logits, counter):  # type: ignore[no-untyped-def]
        """Panels of logits [experts, filled up to whole panels] of normed [1, D], plus bias [experts] where there is
        any, as long as `counter` has some. Returns how many."""
        panels, index, mine = (experts + FLOAT_ROWS - 1) // FLOAT_ROWS, np.zeros(1, np.int64), 0
        while True:
            task = next_task(counter) * TOGETHER
            if task >= panels:
                return mine
            for panel in range(task, min(task + TOGETHER, panels)):
                at = panel * FLOAT_ROWS
                row_float_tile(
                    kind, data, panel * panel_bytes, normed.shape[1] // CHUNK, block, normed, index, 0, 1, logits,
                    at, FLOAT_ROWS,
                )  # fmt: skip
                for e in range(at, min(at + FLOAT_ROWS, len(bias))):
                    logits[e] += bias[e]
                mine += 1

    return share


@cache
def _row_route(kind_name: str) -> Any:
    share = logits_share(kind_name)

    @kernel(parallel=True)
    def row_route(  # type: ignore[no-untyped-def]
        x, norm, epsilon, plus, data, panel_bytes, block, experts, bias, sigmoids, correction, normalise, factor,
        normed, ids, weights, threads,
    ):  # fmt: skip
        norm_lines(x, norm, epsilon, plus, normed)
        logits = np.empty((experts + FLOAT_ROWS - 1) // FLOAT_ROWS * FLOAT_ROWS, np.float32)
        counter = np.zeros(1, np.int64)
        for _ in prange(threads):
            share(data, panel_bytes, block, normed, experts, bias, logits, counter)
        choose(logits[:experts].reshape(1, experts), sigmoids, correction, normalise, factor, ids, weights)

    return row_route


class RowRoute:
    """A router's matrix and rule, applied to single rows."""

    __slots__ = (
        "_given", "_run", "bias", "block", "correction", "factor", "k", "matrix", "normalise", "panel_bytes", "sigmoids"
    )  # fmt: skip

    @staticmethod
    def serves(matrix: Matrix) -> bool:
        """Whether this router's matrix can be used so."""
        return not matrix.integer and matrix.cols % CHUNK == 0

    def __init__(
        self, matrix: Matrix, bias: F32 | None, k: int, *, sigmoids: bool = False, correction: F32 | None = None,
        normalise: bool, factor: float = 1.0,
    ) -> None:  # fmt: skip
        """`sigmoids`: scores are sigmoids and not a softmax; the rest as in `SigmoidRouter`."""
        packing = matrix.packing
        self.matrix, self.bias, self.k = matrix, NONE if bias is None else bias, k
        self.panel_bytes, self.block = packing.panel_bytes(matrix.cols), max(1, packing.block // CHUNK)
        self.sigmoids, self.normalise, self.factor = sigmoids, normalise, np.float32(factor)
        self.correction = NONE if correction is None else correction
        self._run: Callable[..., None] = _row_route(packing.kind)
        self._given = (
            matrix.data, self.panel_bytes, self.block, matrix.rows, self.bias, sigmoids, self.correction, normalise,
            self.factor,
        )  # fmt: skip

    def __call__(self, x: F32, norm: RowNorm) -> tuple[F32, I32, F32]:
        """x f32 [1, D] -> x normed, ids int32 [1, k], best first, and weights f32 [1, k]."""
        normed = np.empty(x.shape, np.float32)
        ids, weights = np.empty((1, self.k), np.int32), np.empty((1, self.k), np.float32)
        with gate:  # changing the number of threads for this one kernel would take longer than it saves
            self._run(np.ascontiguousarray(x), *norm, *self._given, normed, ids, weights, threads())
        return normed, ids, weights
