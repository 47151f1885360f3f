"""Activation rows as the integer path takes them: int8 in groups of 32 with one f32 scale a group.

Rule: scale = absmax / 127; value = round-half-even(x / scale), clipped to ±127; a scale of zero gives zeros;
a short last group is filled with zeros.
"""

from dataclasses import dataclass

import numpy as np

from engine.arrays import F32, Array, aligned
from engine.formats.groups import GROUP
from engine.kernels.compile import kernel
from engine.kernels.quantize import quantize_group
from engine.kernels.threads import LARGE, over_rows

__all__ = ["Rows", "quantize_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """`q` int8 [N, Kp], `scale` f32 [N, Kp / 32], `sums` int32 [N, Kp / 32]; Kp = cols rounded up.

    `sums` holds two sums of q in each group: in its lower 16 bits that of the first two of every 4 values, in its upper
    that of the others. It follows from `q`; make Rows that came over a wire with `Rows.of`.
    """

    q: Array
    scale: F32
    sums: Array
    cols: int

    def __len__(self) -> int:
        return len(self.q)

    @classmethod
    def of(cls, q: Array, scale: F32, cols: int | None = None) -> "Rows":
        """Rows from their values and scales, contiguous; copied where they are not. Raises ValueError for shapes
        that do not fit and for what rounding never gives: the value -128, a scale that is negative or not finite.
        """
        if q.ndim != 2 or q.dtype != np.int8 or q.shape[1] % GROUP:
            raise ValueError(f"rows must be int8 [N, a multiple of {GROUP}], not {q.dtype} {list(q.shape)}")
        if scale.dtype != np.float32 or scale.shape != (len(q), q.shape[1] // GROUP):
            raise ValueError(f"rows {list(q.shape)} cannot have scales {scale.dtype} {list(scale.shape)}")
        sums = np.empty(scale.shape, np.int32)
        q, scale = np.ascontiguousarray(q), np.ascontiguousarray(scale)
        least, sound = _sum_groups(q, scale, sums)
        if least < -127:
            raise ValueError("rows hold the value -128, which rounding never gives")
        if not sound:
            raise ValueError("a row has a scale that is negative or no finite number")
        return cls(q, scale, sums, q.shape[1] if cols is None else cols)

    def f32(self) -> F32:
        """The values the rows stand for, [N, cols]."""
        wide = self.q.reshape(len(self.q), -1, GROUP).astype(np.float32) * self.scale[:, :, None]
        return np.ascontiguousarray(wide.reshape(len(self.q), -1)[:, : self.cols])


@kernel
def _sum_groups(q, scale, sums):  # type: ignore[no-untyped-def]
    """Fills in `sums`; gives the least value, and whether all scales can be."""
    least, sound = np.int32(0), True
    for n in range(sums.shape[0]):
        for g in range(sums.shape[1]):
            low, high = np.int32(0), np.int32(0)
            for i in range(0, 32, 4):
                at = g * 32 + i
                low += np.int32(q[n, at]) + np.int32(q[n, at + 1])
                high += np.int32(q[n, at + 2]) + np.int32(q[n, at + 3])
            for i in range(g * 32, g * 32 + 32):
                least = min(least, np.int32(q[n, i]))
            sums[n, g] = (high << 16) | (low & 0xFFFF)
            sound = sound and 0 <= scale[n, g] < np.inf  # no comparison holds of a NaN
    return least, sound


@kernel
def round_rows(x, q, scale, sums):  # type: ignore[no-untyped-def]
    cols = x.shape[1]
    for n in range(x.shape[0]):
        for g in range(scale.shape[1]):
            count = min(32, cols - g * 32)
            at = n * q.shape[1] + g * 32
            scale[n, g], sums[n, g] = quantize_group(x, n * cols + g * 32, count, np.float32(127), q, at, 32)


def quantize_rows(x: F32) -> Rows:
    """f32 [N, K] -> Rows."""
    count, cols = x.shape
    groups = -(-cols // GROUP)
    q, scale = aligned((count, groups * GROUP), np.int8), aligned((count, groups), np.float32)
    sums = aligned((count, groups), np.int32)
    x = np.ascontiguousarray(x)
    if x.size < LARGE:
        round_rows(x, q, scale, sums)
    else:
        over_rows(count, x.size, lambda rows: round_rows(x[rows], q[rows], scale[rows], sums[rows]))
    return Rows(q, scale, sums, cols)
