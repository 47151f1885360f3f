"""What the bits of small floats mean: bfloat16, E4M3, E8M0 and E2M1, as plain numpy over every code point.

Everything here is exact: a code is turned into the f32 that has its value. Sources: bfloat16 is the upper
half of an f32; E4M3 is the "fn" variant of the OCP 8-bit float specification (no infinities, 0x7F and 0xFF
are NaN); E8M0 and E2M1 are the scale and the element of OCP Microscaling (MX) v1.0.
"""

import numpy as np

from engine.arrays import F32, Array

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the value of each E2M1 code: integers, so that dot products of them are exact."""


def _e4m3_table() -> F32:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[code & 0x7F == 0x7F] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


E4M3 = _e4m3_table()
"""f32 value of each E4M3 code [256]."""

E8M0 = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)
"""f32 value of each E8M0 code [256]: 2 ** (code - 127), NaN for 255; code 0 is a subnormal f32."""


def bf16_to_f32(bits: Array) -> F32:
    """uint16 bits of bfloat16, any shape -> the same values as f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: F32) -> Array:
    """f32, any shape -> uint16 bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)


def e4m3_to_f32(codes: Array) -> F32:
    """uint8 E4M3 codes, any shape -> f32."""
    return E4M3[codes]


def e8m0_to_f32(codes: Array) -> F32:
    """uint8 E8M0 codes, any shape -> f32."""
    return E8M0[codes]


def nibbles(packed: Array) -> Array:
    """uint8 [..., n] -> uint8 [..., 2n]: the two halves of each byte, low one first."""
    packed = packed.view(np.uint8)
    both = np.stack([packed & 15, packed >> 4], -1)
    return both.reshape(*packed.shape[:-1], 2 * packed.shape[-1])
