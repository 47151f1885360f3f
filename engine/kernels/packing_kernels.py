"""Rounding and laying out weights, all panels of a matrix in one launch. The plain references are in
`engine.formats`.
"""

from typing import Any

import numpy as np
from numba import prange, types

from engine.kernels import ir as w
from engine.kernels.atomic import next_task
from engine.kernels.compile import intrinsic, kernel
from engine.kernels.integer_tile import half_to_float
from engine.kernels.ir import I8, I16, Value, call, constant, load, offset, splat, store, vector
from engine.kernels.isa import isa
from engine.kernels.quantize import FLOATS, GROUP, INTS, ROUNDER, largest
from engine.kernels.scalar import f32_to_bits


@intrinsic
def widen_group(typing_context: Any, kind: Any, source: Any, start: Any, out: Any) -> Any:
    """out[0:32] = 32 floats from element `start` of source; kind 0: f32, 1: bf16, 2: f16 (both as uint16)."""
    which = kind.literal_value if isinstance(kind, types.IntegerLiteral) else None
    if which is None:
        return None

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        target = w.data_pointer(context, b, kinds[3], a[3], w.F32)
        if which == 0:
            source = offset(b, w.data_pointer(context, b, kinds[1], a[1], w.F32), a[2])
            value = load(b, source, FLOATS, 4)
        else:
            bits = load(
                b, offset(b, w.data_pointer(context, b, kinds[1], a[1], I16), a[2]), vector(I16, GROUP), 2
            )
            if which == 1:
                value = b.bitcast(b.shl(b.zext(bits, INTS), constant(INTS, 16)), FLOATS)
            else:
                value = half_to_float(b, bits, isa().half)
        store(b, value, target, 4)
        return context.get_dummy_value()

    return types.void(kind, source, types.intp, out), generate


@intrinsic
def group_absmax(typing_context: Any, x: Any) -> Any:
    """The largest magnitude of x[0:32], f32."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        value = load(builder, w.data_pointer(context, builder, signature.args[0], a[0], w.F32), FLOATS, 4)
        return largest(builder, call(builder, "llvm.fabs.v32f32", FLOATS, [value]))

    return types.float32(x), generate


@intrinsic
def round_group(typing_context: Any, x: Any, divisor: Any, low: Any, high: Any, bias: Any, out: Any) -> Any:
    """out[0:32] (uint8) = round-half-even(x[0:32] / divisor), clipped to low … high (f32), plus bias (int8
    bits).
    """

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        value = load(b, w.data_pointer(context, b, kinds[0], a[0], w.F32), FLOATS, 4)
        rounder = constant(FLOATS, ROUNDER)
        value = b.fsub(b.fadd(b.fdiv(value, splat(b, a[1], GROUP)), rounder), rounder)
        bottom, top = splat(b, a[2], GROUP), splat(b, a[3], GROUP)
        value = b.select(b.fcmp_ordered("<", value, top), value, top)
        value = b.select(b.fcmp_ordered(">", value, bottom), value, bottom)
        whole = b.trunc(b.fptosi(value, INTS), vector(I8, GROUP))
        store(b, b.add(whole, splat(b, a[4], GROUP)), w.data_pointer(context, b, kinds[5], a[5], I8), 1)
        return context.get_dummy_value()

    f = types.float32
    return types.void(x, f, f, f, types.int8, out), generate


@intrinsic
def split_nibbles(typing_context: Any, source: Any, start: Any, codes: Any) -> Any:
    """codes[0:32] (uint8) = the halves of 16 bytes from source.flat[start], low ones first."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds, half = builder, signature.args, vector(I8, 16)
        packed = load(b, offset(b, w.data_pointer(context, b, kinds[0], a[0], I8), a[1]), half)
        low, high = b.and_(packed, constant(half, 15)), b.lshr(packed, constant(half, 4))
        mixed = w.shuffle(b, low, high, [place // 2 + 16 * (place % 2) for place in range(32)])
        store(b, mixed, w.data_pointer(context, b, kinds[2], a[2], I8))
        return context.get_dummy_value()

    return types.void(source, types.intp, codes), generate


@intrinsic
def place_codes(typing_context: Any, wide: Any, codes: Any, data: Any, at: Any) -> Any:
    """Writes the 32 codes of one row and group: see `integer_tile`. `at`: byte of the group plus 4 · row.
    wide: a byte a code.
    """

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        target = offset(b, w.data_pointer(context, b, kinds[2], a[2], I8), a[3])
        given = load(b, w.data_pointer(context, b, kinds[1], a[1], I8), vector(I8, 32))

        def steps(value: Value, count: int) -> None:
            for step in range(count):
                store(
                    b,
                    w.shuffle(b, value, value, list(range(4 * step, 4 * step + 4))),
                    offset(b, target, 64 * step),
                )

        with b.if_else(a[0]) as (then, otherwise):
            with then:
                steps(given, 8)
            with otherwise:
                low = w.shuffle(b, given, given, list(range(16)))
                high = w.shuffle(b, given, given, list(range(16, 32)))
                steps(b.or_(low, b.shl(high, constant(vector(I8, 16), 4))), 4)
        return context.get_dummy_value()

    return types.void(types.boolean, codes, data, types.intp), generate


@kernel
def f16_bits(x):  # type: ignore[no-untyped-def]
    """The bits of the f16 nearest to a finite f32, ties to even, magnitudes above 65504 clipped; as int32."""
    bits = f32_to_bits(x)
    sign, size = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if size >= 0x477FF000:
        return sign | 0x7BFF
    if size < 0x38800000:  # below 2**-14: subnormal, units of 2**-24
        steps = abs(np.float64(x)) * 16777216.0
        return sign | np.int32((steps + 6755399441055744.0) - 6755399441055744.0)
    rounded = size + 0xFFF + ((size >> 13) & 1)
    return sign | ((rounded - 0x38000000) >> 13)


@kernel
def f16_value(bits):  # type: ignore[no-untyped-def]
    """The f32 of finite f16 bits."""
    exponent, mantissa = (bits >> 10) & 31, bits & 1023
    if exponent == 0:
        value = np.float64(mantissa) / 16777216.0
    else:
        value = np.float64(1024 + mantissa) * np.float64(1 << exponent) / 33554432.0
    return np.float32(-value if bits & 0x8000 else value)


@kernel(parallel=True)
def pack_rounded(source, kind, rows, cols, wide, data, base, stride, threads):  # type: ignore[no-untyped-def]
    """Rounds floats [rows · cols] by the q8 (`wide`) or the q4 rule and writes the panels. kind: see
    `widen_group`.
    Panel p starts at byte base + p · stride.
    """
    groups = (cols + 31) // 32
    weight_bytes = 512 if wide else 256
    panels = (rows + 15) // 16
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        x = np.zeros(32, np.float32)
        codes = np.empty(32, np.uint8)
        padded = np.zeros(32, source.dtype)
        while True:
            panel = next_task(counter)
            if panel >= panels:
                break
            start = base + panel * stride
            for row in range(16):
                for g in range(groups):
                    block = start + (g >> 1) * (2 * weight_bytes + 64)
                    at = block + (g & 1) * weight_bytes + row * 4
                    scale_at = block + 2 * weight_bytes + (g & 1) * 32 + row * 2
                    if panel * 16 + row >= rows:
                        codes[:] = 128 if wide else 8
                        data[scale_at], data[scale_at + 1] = 0, 0
                        place_codes(wide, codes, data, at)
                        continue
                    first = (panel * 16 + row) * cols + g * 32
                    where, begin = source, first
                    if cols - g * 32 < 32:
                        padded[:] = 0
                        for i in range(cols - g * 32):
                            padded[i] = source[first + i]
                        where, begin = padded, 0
                    if kind == 0:
                        widen_group(0, where, begin, x)
                    elif kind == 1:
                        widen_group(1, where, begin, x)
                    else:
                        widen_group(2, where, begin, x)
                    extreme = group_absmax(x)
                    if wide:
                        bits = f16_bits(extreme / np.float32(127))
                    else:
                        for i in range(32):
                            if abs(x[i]) == extreme:
                                extreme = x[i]
                                break
                        bits = f16_bits(extreme / np.float32(-8))
                    scale = f16_value(bits)
                    divisor = scale if scale != np.float32(0) else np.float32(np.inf)
                    if wide:
                        round_group(x, divisor, np.float32(-127), np.float32(127), np.int8(-128), codes)
                    else:
                        round_group(x, divisor, np.float32(-8), np.float32(7), np.int8(8), codes)
                    data[scale_at], data[scale_at + 1] = bits & 255, (bits >> 8) & 255
                    place_codes(wide, codes, data, at)


@kernel(parallel=True)
def pack_nibbles(source, scales, scale_bytes, blank, rows, cols, data, base, stride, threads):  # type: ignore[no-untyped-def]
    """Lays out 4-bit codes, two a byte with the lower first: source uint8 [rows, row bytes], scales uint8
    [rows, bytes].

    `blank` is the code of rows and columns that are not there. Panel p starts at byte base + p · stride.
    """
    groups, scaled = (cols + 31) // 32, 4 // scale_bytes
    panels = (rows + 15) // 16
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        codes = np.empty(32, np.uint8)
        while True:
            panel = next_task(counter)
            if panel >= panels:
                break
            start = base + panel * stride
            for row in range(16):
                n = panel * 16 + row
                for g in range(groups):
                    count = min(32, cols - g * 32) if n < rows else 0
                    if count == 32:
                        split_nibbles(source, n * source.shape[1] + g * 16, codes)
                    else:
                        for i in range(count):
                            byte = source[n, (g * 32 + i) >> 1]
                            codes[i] = byte >> 4 if i & 1 else byte & 15
                    for i in range(count, 32):
                        codes[i] = blank
                    block, place = start + g // scaled * (scaled * 256 + 64), g % scaled
                    place_codes(False, codes, data, block + place * 256 + row * 4)
                    at = block + scaled * 256 + (place * 16 + row) * scale_bytes
                    for i in range(scale_bytes):
                        data[at + i] = scales[n, g * scale_bytes + i] if n < rows else 0
