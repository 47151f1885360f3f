"""Norms over the last dimension, and the like, on contiguous f32; sums in the order of `lanes`."""

from typing import Any

import numpy as np

from engine.arrays import F32, aligned
from engine.kernels.compile import kernel
from engine.kernels.lanes import lane_dot, lane_sum
from engine.kernels.scalar import exp
from engine.kernels.threads import LARGE, over_rows

NONE: Any = np.empty(0, np.float32)


def _lines(x: F32, width: int | None) -> F32:
    """x as contiguous lines of `width` (None: its last dimension)."""
    if width is None and x.ndim == 2 and x.dtype == np.float32 and x.flags.c_contiguous:
        return x
    wide = x.shape[-1] if width is None else width
    if wide < 1 or x.shape[-1] % wide:
        raise ValueError(f"lines of {x.shape[-1]} cannot be split into groups of {width}")
    return np.ascontiguousarray(x, np.float32).reshape(-1, wide)


@kernel
def norm_lines(x, weight, epsilon, plus, out):  # type: ignore[no-untyped-def]
    count = x.shape[1]
    for n in range(x.shape[0]):
        mean = lane_dot(x, n * count, x, n * count, count) / np.float32(count)
        factor = np.float32(1) / np.sqrt(mean + epsilon)
        if len(weight) == 0:
            for i in range(count):
                out[n, i] = x[n, i] * factor
        else:
            first = (n * count) % len(weight)
            for i in range(count):
                out[n, i] = (x[n, i] * factor) * (weight[first + i] + plus)


def rms_norm(
    x: F32, weight: F32 | None, epsilon: float, *, plus_one: bool = False, width: int | None = None
) -> F32:
    """x / sqrt(mean(x²) + epsilon) · weight over groups of `width` (default: the last dimension); same shape
    as x.

    `weight` [width], or [several widths] for an own one a group, or None for none; `plus_one` multiplies by 1
    + weight.
    """
    lines = _lines(x, width)
    if weight is not None and (x.shape[-1] % len(weight) and len(weight) != lines.shape[1]):
        raise ValueError(
            f"a weight of {len(weight)} does not fit lines of {x.shape[-1]} in groups of {lines.shape[1]}"
        )
    out = aligned(lines.shape, np.float32)
    given = NONE if weight is None else weight
    # Groups that a weight spans: rows are cut only between its repetitions.
    each = max(1, len(given) // lines.shape[1])
    spans, plus = len(lines) // each, np.float32(1 if plus_one else 0)

    def run(rows: slice) -> None:
        some = slice(rows.start * each, rows.stop * each)
        norm_lines(lines[some], given, np.float32(epsilon), plus, out[some])

    if lines.size < LARGE:
        norm_lines(lines, given, np.float32(epsilon), plus, out)
    else:
        over_rows(spans, lines.size, run)
    return out if lines is x else out.reshape(x.shape)


@kernel
def _layer_norm(x, weight, bias, epsilon, out):  # type: ignore[no-untyped-def]
    count = x.shape[1]
    for n in range(x.shape[0]):
        mean = lane_sum(x, n * count, count) / np.float32(count)
        for i in range(count):
            out[n, i] = x[n, i] - mean
        variance = lane_dot(out, n * count, out, n * count, count) / np.float32(count)
        factor = np.float32(1) / np.sqrt(variance + epsilon)
        for i in range(count):
            value = (out[n, i] * factor) * weight[i]
            out[n, i] = value + bias[i] if len(bias) else value


def layer_norm(x: F32, weight: F32, bias: F32 | None, epsilon: float) -> F32:
    """(x - mean) / sqrt(variance + epsilon) · weight + bias over the last dimension; same shape as x."""
    lines = _lines(x, None)
    out = aligned(lines.shape, np.float32)
    _layer_norm(lines, weight, NONE if bias is None else bias, np.float32(epsilon), out)
    return out.reshape(x.shape)


@kernel
def _l2_normalize(x, epsilon, out):  # type: ignore[no-untyped-def]
    count = x.shape[1]
    for n in range(x.shape[0]):
        factor = np.float32(1) / np.sqrt(lane_dot(x, n * count, x, n * count, count) + epsilon)
        for i in range(count):
            out[n, i] = x[n, i] * factor


def l2_normalize(x: F32, epsilon: float, *, width: int | None = None) -> F32:
    """x / sqrt(sum(x²) + epsilon) over groups of `width` (default: the last dimension); same shape as x."""
    lines = _lines(x, width)
    out = aligned(lines.shape, np.float32)
    over_rows(len(lines), lines.size, lambda rows: _l2_normalize(lines[rows], np.float32(epsilon), out[rows]))
    return out.reshape(x.shape)


@kernel
def softmax_lines(x, out):  # type: ignore[no-untyped-def]
    count = x.shape[1]
    for n in range(x.shape[0]):
        top = x[n, 0]
        for i in range(count):
            top = max(top, x[n, i])
        for i in range(count):
            out[n, i] = exp(x[n, i] - top)
        total = lane_sum(out, n * count, count)
        for i in range(count):
            out[n, i] /= total


def softmax(x: F32) -> F32:
    """Softmax over the last dimension; same shape as x."""
    lines = _lines(x, None)
    out = aligned(lines.shape, np.float32)
    if lines.size < LARGE:
        softmax_lines(lines, out)
    else:
        over_rows(len(lines), lines.size, lambda rows: softmax_lines(lines[rows], out[rows]))
    return out if lines is x else out.reshape(x.shape)


@kernel
def _lane_sums(x, out):  # type: ignore[no-untyped-def]
    for n in range(x.shape[0]):
        out[n] = lane_sum(x, n * x.shape[1], x.shape[1])


def sums(x: F32) -> F32:
    """Sum over the last dimension in the order of `lanes`: use it where np.sum would depend on the
    machine.
    """
    lines = _lines(x, None)
    out = np.empty(len(lines), np.float32)
    _lane_sums(lines, out)
    return out.reshape(x.shape[:-1])


@kernel
def _lane_dots(x, y, out):  # type: ignore[no-untyped-def]
    for n in range(x.shape[0]):
        out[n] = lane_dot(x, n * x.shape[1], y, n * x.shape[1], x.shape[1])


def dots(x: F32, y: F32) -> F32:
    """Dot products over the last dimension of two arrays of one shape, in the order of `lanes`."""
    x, y = np.broadcast_arrays(x, y)
    one, two = _lines(x, None), _lines(y, None)
    out = np.empty(len(one), np.float32)
    _lane_dots(one, two, out)
    return out.reshape(x.shape[:-1])
