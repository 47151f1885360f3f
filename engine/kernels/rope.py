"""Rotary position embedding: tables computed in f64 from our own sin and cos, and their application.

Pairs are (i, i + d/2) in the half-split form, (2i, 2i + 1) in the interleaved form; dimensions beyond `d`
stay as they are.
"""

import numpy as np

from engine.arrays import F32, I32, Array, aligned
from engine.kernels.compile import kernel
from engine.kernels.scalar import pow64, sincos64
from engine.kernels.threads import LARGE, over_rows


@kernel
def _powers(base, exponents, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = pow64(base, exponents[i])


def powers(base: float, exponents: Array) -> Array:
    """base ** exponent for each exponent (f64), the same bits on every CPU; base > 0."""
    out = np.empty(len(exponents), np.float64)
    _powers(float(base), np.ascontiguousarray(exponents, np.float64), out)
    return out


def inverse_frequencies(dim: int, base: float) -> Array:
    """base ** (-2i / dim) for i < dim / 2, f64."""
    return powers(base, np.arange(0, dim, 2, dtype=np.float64) / -dim)


@kernel
def _tables(positions, frequencies, scale, cos, sin):  # type: ignore[no-untyped-def]
    for n in range(len(positions)):
        for i in range(len(frequencies)):
            s, c = sincos64(positions[n] * frequencies[i])
            cos[n, i] = np.float32(c * scale)
            sin[n, i] = np.float32(s * scale)


def rope_tables(positions: Array, frequencies: Array, scale: float = 1.0) -> tuple[F32, F32]:
    """cos and sin of positions [N] times frequencies [d / 2], multiplied by `scale`: f32 [N, d / 2] each."""
    shape = (len(positions), len(frequencies))
    cos, sin = aligned(shape, np.float32), aligned(shape, np.float32)
    _tables(
        np.ascontiguousarray(positions, np.float64),
        np.ascontiguousarray(frequencies, np.float64),
        float(scale),
        cos,
        sin,
    )
    return cos, sin


@kernel
def rotate(x, cos, sin, first, interleaved, out):  # type: ignore[no-untyped-def]
    half = cos.shape[1]
    middle, end = first + half, first + 2 * half
    for n in range(x.shape[0]):
        c, s = cos[n], sin[n]
        for h in range(x.shape[1]):
            line, turned = x[n, h], out[n, h]
            for i in range(len(line)):
                turned[i] = line[i]
            if interleaved:
                for i in range(half):
                    one, two = line[first + 2 * i], line[first + 2 * i + 1]
                    turned[first + 2 * i] = one * c[i] - two * s[i]
                    turned[first + 2 * i + 1] = two * c[i] + one * s[i]
            else:  # loops of one output each become vector code
                ones, twos = line[first:middle], line[middle:end]
                low, high = turned[first:middle], turned[middle:end]
                for i in range(half):
                    low[i] = ones[i] * c[i] - twos[i] * s[i]
                for i in range(half):
                    high[i] = twos[i] * c[i] + ones[i] * s[i]


def rope(x: F32, cos: F32, sin: F32, *, interleaved: bool = False, first: int = 0) -> F32:
    """Rotates dimensions first … first + d of x [N, heads, D] by tables [N, d / 2]; the others are copied."""
    if x.ndim != 3 or cos.shape != sin.shape or len(cos) != len(x) or first + 2 * cos.shape[1] > x.shape[2]:
        raise ValueError(
            f"rows {list(x.shape)} cannot be rotated by tables {list(cos.shape)} from dimension {first}"
        )
    out = aligned(x.shape, np.float32)
    x = np.ascontiguousarray(x, np.float32)

    def run(rows: slice) -> None:
        rotate(x[rows], cos[rows], sin[rows], first, interleaved, out[rows])

    if x.size < LARGE:
        rotate(x, cos, sin, first, interleaved, out)
    else:
        over_rows(len(x), x.size, run)
    return out


def inverse_rope(x: F32, cos: F32, sin: F32, *, interleaved: bool = False, first: int = 0) -> F32:
    """Rotates back: `rope` by the negative positions."""
    return rope(x, cos, -sin, interleaved=interleaved, first=first)


__all__ = ["I32", "inverse_frequencies", "inverse_rope", "powers", "rope", "rope_tables"]
