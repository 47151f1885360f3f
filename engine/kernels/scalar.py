"""exp, log, tanh and the like from IEEE additions, multiplications and divisions alone: the same bits on
every CPU.

Device functions on one value, branch-free where it matters so that loops over them become vector code.
Methods: range reduction by powers of two (exp, log; the two-part constants of ln 2 are those of Cody and
Waite, 1980) and by multiples of π/2 in three parts (sin, cos), then Taylor or Horner polynomials; log uses
the series of artanh. f32 functions are within about 2 units in the last place, f64 ones within about 4.
"""

import math
from typing import Any

import numpy as np
from numba import types

from engine.kernels.compile import device, intrinsic
from engine.kernels.ir import F32, F64, I32, I64, fma

f32 = np.float32


@intrinsic
def fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c in f32 with one rounding."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return fma(builder, *arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def bits_to_f32(typing_context: Any, bits: Any) -> Any:
    """The f32 with these bits (int32)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], F32)

    return types.float32(types.int32), generate


@intrinsic
def f32_to_bits(typing_context: Any, value: Any) -> Any:
    """The bits of an f32, as int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], I32)

    return types.int32(types.float32), generate


@intrinsic
def bits_to_f64(typing_context: Any, bits: Any) -> Any:
    """The f64 with these bits (int64)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], F64)

    return types.float64(types.int64), generate


@intrinsic
def f64_to_bits(typing_context: Any, value: Any) -> Any:
    """The bits of an f64, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], I64)

    return types.int64(types.float64), generate


ROUND32 = f32(12582912.0)  # 1.5 · 2**23: adding and subtracting rounds half to even
ROUND64 = 6755399441055744.0  # 1.5 · 2**52

LOG2E, LN2 = f32(1.4426950408889634), f32(0.6931471805599453)
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)
EXP_TERMS = tuple(f32(1.0 / math.factorial(n)) for n in range(8))
E7, E6, E5, E4, E3, E2 = (EXP_TERMS[n] for n in (7, 6, 5, 4, 3, 2))


@device
def exp(x):  # type: ignore[no-untyped-def]
    """e ** x for f32; 0 below -103.9, infinity above 88.7."""
    x = min(max(x, f32(-104.0)), f32(89.0))
    n = (x * LOG2E + ROUND32) - ROUND32
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = E7
    p = p * r + E6
    p = p * r + E5
    p = p * r + E4
    p = p * r + E3
    p = p * r + E2
    p = (p * r) * r + r + f32(1.0)
    half = np.int32(n) >> np.int32(1)  # in two steps, so that neither power of two leaves the range
    rest = np.int32(n) - half
    return (
        p
        * bits_to_f32((half + np.int32(127)) << np.int32(23))
        * bits_to_f32((rest + np.int32(127)) << np.int32(23))
    )


@device
def exp64(x):  # type: ignore[no-untyped-def]
    """e ** x for f64 in -700 … 700."""
    n = (x * 1.4426950408889634 + ROUND64) - ROUND64
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    for k in (
        479001600.0,
        39916800.0,
        3628800.0,
        362880.0,
        40320.0,
        5040.0,
        720.0,
        120.0,
        24.0,
        6.0,
        2.0,
        1.0,
        1.0,
    ):
        p = p * r + 1.0 / k
    return p * bits_to_f64((np.int64(n) + 1023) << 52)


@device
def log64(x):  # type: ignore[no-untyped-def]
    """Natural logarithm for normal, positive f64."""
    bits = f64_to_bits(x)
    exponent = (bits >> 52) - 1023
    m = bits_to_f64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000)
    if m > 1.4142135623730951:
        m, exponent = m * 0.5, exponent + 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 23.0
    for k in (21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        p = p * z + 1.0 / k
    n = float(exponent)
    return n * 6.93147180369123816490e-01 + (n * 1.90821492927058770002e-10 + (2.0 * s * z * p + 2.0 * s))


@device
def log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm for f32: -infinity at 0, NaN below."""
    wide = np.float64(x)
    value = f32(log64(wide)) if wide > 0.0 and wide < np.inf else f32(np.inf)
    if wide == 0.0:
        return f32(-np.inf)
    return value if wide > 0.0 else f32(np.nan)


@device
def pow64(base, exponent):  # type: ignore[no-untyped-def]
    """base ** exponent for positive f64 base, as exp64(exponent · log64(base))."""
    return exp64(exponent * log64(base))


@device
def log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for f32 x > -1, through f64."""
    wide = np.float64(x)
    if abs(wide) < 1e-9:
        return x
    return f32(log64(1.0 + wide)) if wide > -1.0 else (f32(-np.inf) if wide == -1.0 else f32(np.nan))


@device
def softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e ** x) for f32."""
    wide = np.float64(x)
    small = exp64(-min(abs(wide), 700.0))
    tail = small if small < 1e-9 else log64(1.0 + small)
    return f32(max(wide, 0.0) + tail)


@device
def log_sigmoid(x):  # type: ignore[no-untyped-def]
    """log(sigmoid(x)) for f32."""
    return -softplus(-x)


@device
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e ** -x) for f32."""
    return f32(1.0) / (f32(1.0) + exp(-x))


@device
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent for f32; odd, with a series below 0.25 where the quotient would cancel."""
    size = abs(x)
    z = size * size
    series = size + size * z * (
        f32(-1 / 3)
        + z * (f32(2 / 15) + z * (f32(-17 / 315) + z * (f32(62 / 2835) + z * f32(-1382 / 155925))))
    )
    quotient = f32(1.0) - f32(2.0) / (exp(f32(2.0) * size) + f32(1.0))
    value = series if size < f32(0.25) else quotient
    return -value if x < f32(0.0) else value


@device
def silu(x):  # type: ignore[no-untyped-def]
    """x · sigmoid(x) for f32."""
    return x / (f32(1.0) + exp(-x))


@device
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    """GELU by its tanh approximation (Hendrycks and Gimpel, 2016) for f32."""
    inner = f32(0.7978845608028654) * (x + f32(0.044715) * x * x * x)
    return f32(0.5) * x * (f32(1.0) + tanh(inner))


@device
def erf(x):  # type: ignore[no-untyped-def]
    """The error function for f32, by its everywhere convergent series in f64 (exact to f32 below 4, ±1
    beyond).
    """
    wide = min(abs(np.float64(x)), 4.0)
    z = 2.0 * wide * wide
    term, total = wide, wide
    for n in range(60):
        term = term * z / (2.0 * n + 3.0)
        total += term
    value = f32(min(1.1283791670955126 * total * exp64(-wide * wide), 1.0))
    return -value if x < f32(0.0) else value


@device
def gelu(x):  # type: ignore[no-untyped-def]
    """GELU by the error function for f32."""
    return f32(0.5) * x * (f32(1.0) + erf(x * f32(0.7071067811865476)))


@device
def sincos64(angle):  # type: ignore[no-untyped-def]
    """sin and cos of an f64 angle of at most about 1e9 radians."""
    n = (angle * 0.6366197723675814 + ROUND64) - ROUND64
    r = (
        (angle - n * 1.57079632673412561417) - n * 6.07710050630396597660e-11
    ) - n * 2.02226624879595063154e-21
    z = r * r
    s = 1.0 / 355687428096000.0
    for k in (1307674368000.0, 6227020800.0, 39916800.0, 362880.0, 5040.0, 120.0, 6.0, 1.0):
        s = 1.0 / k - z * s
    s = s * r
    c = 1.0 / 6402373705728000.0
    for k in (20922789888000.0, 87178291200.0, 479001600.0, 3628800.0, 40320.0, 720.0, 24.0, 2.0, 1.0):
        c = 1.0 / k - z * c
    quadrant = np.int64(n) & 3
    if quadrant & 1:
        s, c = c, s
    if quadrant & 2:
        s = -s
    if (quadrant + 1) & 2:
        c = -c
    return s, c
