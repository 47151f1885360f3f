"""The short causal convolution before linear attention: each channel mixes its own last few values."""

import numpy as np
from numba import prange

from engine.arrays import F32, aligned
from engine.kernels.atomic import next_task
from engine.kernels.compile import device, kernel
from engine.kernels.scalar import fused, silu
from engine.kernels.threads import gate, threads

NO_BIAS = np.empty(0, np.float32)
ROWS = 4  # of a task


@device
def _mix(weight, row, out):  # type: ignore[no-untyped-def]
    for c in range(len(out)):
        out[c] = fused(weight[c], row[c], out[c])


@kernel(parallel=True)
def _convolve(x, weight, bias, with_silu, before, out, threads):  # type: ignore[no-untyped-def]
    count, taps = len(x), len(weight)
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        while True:
            first = next_task(counter) * ROWS
            if first >= count:
                break
            for n in range(first, min(first + ROWS, count)):
                line = out[n]
                if len(bias):
                    line[:] = bias
                else:
                    line[:] = np.float32(0)
                for t in range(taps):
                    at = n - (taps - 1) + t
                    _mix(weight[t], x[at] if at >= 0 else before[taps - 1 + at], line)
                if with_silu:
                    for c in range(len(line)):
                        line[c] = silu(line[c])


def causal_convolution(
    x: F32, weight: F32, before: F32, after: F32, *, bias: F32 | None = None, silu: bool = False
) -> F32:
    """out[n, c] = bias[c] + Σ over t of weight[t, c] · x[n − (T − 1) + t, c], then silu if asked: f32 [N, C].

    x f32 [N, C]; weight f32 [T, C], the tap of the row itself last (a Conv1d's weight [C, 1, T] transposed).
    `before` [T − 1, C] are the rows that came before x, zeros at the start of a sequence; `after` is set to
    those that come before what follows. Summed by fma in increasing order of t. ValueError for wrong shapes.
    """
    count, channels = x.shape
    tail = (len(weight) - 1, channels)
    if weight.shape[1:] != (channels,) or before.shape != tail or after.shape != tail:
        raise ValueError(
            f"rows {list(x.shape)}, taps {list(weight.shape)} and tails {list(before.shape)}, "
            f"{list(after.shape)} do not fit"
        )
    x = np.ascontiguousarray(x, np.float32)
    out = aligned(x.shape, np.float32)
    with gate:
        _convolve(x, weight, NO_BIAS if bias is None else bias, silu, before, out, threads())
    kept = max(0, tail[0] - count)
    after[:kept] = before[tail[0] - kept :]
    after[kept:] = x[count - (tail[0] - kept) :]
    return out
