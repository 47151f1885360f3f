"""Rounding and laying out weights, all panels of some rows in one launch. The plain references are in
`engine.formats` and in the tests.

`geometry` says how the stored bytes are read, see `engine.kernels.packing.geometry`; panel p starts at byte
base + p · stride of `data`.
"""

from typing import Any

import numpy as np
from numba import prange, types

from engine.kernels import ir as w
from engine.kernels.atomic import next_task
from engine.kernels.compile import device, intrinsic, kernel
from engine.kernels.integer_tile import half_to_float
from engine.kernels.ir import I1, I8, I16, I32, Value, call, constant, load, offset, splat, store, vector
from engine.kernels.isa import isa
from engine.kernels.quantize import FLOATS, GROUP, INTS, ROUNDER, largest
from engine.kernels.stored_groups import group_codes, group_floats

pair: Any = types.Tuple


@intrinsic
def group_absmax(typing_context: Any, x: Any) -> Any:
    """The largest magnitude of x[0:32], f32."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        value = load(builder, w.data_pointer(context, builder, signature.args[0], a[0], w.F32), FLOATS, 4)
        return largest(builder, call(builder, "llvm.fabs.v32f32", FLOATS, [value]))

    return types.float32(x), generate


@intrinsic
def first_of_size(typing_context: Any, x: Any, size: Any) -> Any:
    """The first of x[0:32] (f32) whose magnitude is `size`, with its sign; `size` when none is."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b = builder
        pointer = w.data_pointer(context, b, signature.args[0], a[0], w.F32)
        magnitudes = call(b, "llvm.fabs.v32f32", FLOATS, [load(b, pointer, FLOATS, 4)])
        equal = b.bitcast(b.fcmp_ordered("==", magnitudes, splat(b, a[1], GROUP)), I32)
        none = b.icmp_unsigned("==", equal, constant(I32, 0))
        place = call(b, "llvm.cttz.i32", I32, [equal, constant(I1, 0)])
        found = b.load(offset(b, pointer, b.select(none, constant(I32, 0), place)))
        return b.select(none, a[1], found)

    return types.float32(x, types.float32), generate


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


@intrinsic
def narrow_group(typing_context: Any, x: Any) -> Any:
    """The first 64 bytes of x = x[0:32] (f32) as bfloat16, to the nearest, ties to even; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b = builder
        place = w.data_pointer(context, b, signature.args[0], a[0], w.F32)
        value = load(b, place, FLOATS, 4)
        bits = b.bitcast(value, INTS)
        upper = b.lshr(bits, constant(INTS, 16))
        odd = b.and_(upper, constant(INTS, 1))
        rounded = b.lshr(b.add(bits, b.add(odd, constant(INTS, 0x7FFF))), constant(INTS, 16))
        nan = b.fcmp_unordered("uno", value, value)
        chosen = b.select(nan, b.or_(upper, constant(INTS, 0x40)), rounded)
        store(b, b.trunc(chosen, vector(I16, GROUP)), place, 4)
        return context.get_dummy_value()

    return types.void(x), generate


@intrinsic
def copy_chunk(typing_context: Any, size: Any, source: Any, start: Any, data: Any, at: Any) -> Any:
    """data[at + i] = source[start + i] (both uint8) for the 16 · size bytes of 16 columns; size 1, 2 or 4."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        first = offset(b, w.data_pointer(context, b, kinds[1], a[1], I8), a[2])
        target = offset(b, w.data_pointer(context, b, kinds[3], a[3], I8), a[4])
        for size in (1, 2, 4):
            with b.if_then(b.icmp_signed("==", a[0], constant(w.I64, size))):
                store(b, load(b, first, vector(I8, 16 * size)), target)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, source, i, data, i), generate


@intrinsic
def nearest_half(typing_context: Any, x: Any) -> Any:
    """(bits, value), int32 and f32, of the f16 nearest to an f32: ties to even, magnitudes above 65504 and NaN as
    65504."""
    result = pair((types.int32, types.float32))

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, largest_half = builder, constant(w.F32, 65504.0)
        sign = b.and_(b.lshr(b.bitcast(a[0], I32), constant(I32, 16)), constant(I32, 0x8000))
        size = call(b, "llvm.fabs.f32", w.F32, [a[0]])
        size = b.select(b.fcmp_ordered("<", size, largest_half), size, largest_half)
        whole = b.bitcast(size, I32)
        odd = b.and_(b.lshr(whole, constant(I32, 13)), constant(I32, 1))
        rounded = b.lshr(b.add(whole, b.add(odd, constant(I32, 0xFFF - (112 << 23)))), constant(I32, 13))
        # Below 2 ** -14 in steps of 2 ** -24, which is what f32 has from 0.5 on.
        steps = b.sub(b.bitcast(b.fadd(size, constant(w.F32, 0.5)), I32), constant(I32, 0x3F000000))
        tiny = b.fcmp_ordered("<", size, constant(w.F32, 2.0**-14))
        bits = b.or_(sign, b.select(tiny, steps, rounded))
        one = b.bitcast(b.trunc(bits, I16), vector(I16, 1))
        value = b.extract_element(half_to_float(b, one, isa().half), constant(I32, 0))
        return context.make_tuple(b, result, [bits, value])

    return result(types.float32), generate


@kernel(parallel=True)
def pack_rounded(values, scales, geometry, wide, data, base, stride, threads):  # type: ignore[no-untyped-def]
    """Rounds by the q8 (`wide`) or the q4 rule, 16 rows a panel, with f16 scales."""
    rows, cols, coding, row_bytes, group_bytes, scaled_by, scale_row, scale_bytes, span = geometry
    groups = (cols + 31) // 32
    weight_bytes = 512 if wide else 256
    panels = (rows + 15) // 16
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        x = np.empty(32, np.float32)
        codes = np.empty(32, np.uint8)
        while True:
            panel = next_task(counter)
            if panel >= panels:
                break
            for row in range(16):
                n = panel * 16 + row
                for g in range(groups):
                    block = base + panel * stride + (g >> 1) * (2 * weight_bytes + 64)
                    at = block + (g & 1) * weight_bytes + row * 4
                    scale_at = block + 2 * weight_bytes + (g & 1) * 32 + row * 2
                    if n >= rows:
                        codes[:] = 128 if wide else 8
                        data[scale_at], data[scale_at + 1] = 0, 0
                        place_codes(wide, codes, data, at)
                        continue
                    first = n * row_bytes + g * group_bytes
                    factor_at = n * scale_row + g // span * scale_bytes
                    group_floats(coding, values, first, scaled_by, scales, factor_at, x)
                    for i in range(cols - g * 32, 32):
                        x[i] = 0
                    extreme = group_absmax(x)
                    if wide:
                        bits, scale = nearest_half(extreme / np.float32(127))
                    else:
                        bits, scale = nearest_half(first_of_size(x, extreme) / np.float32(-8))
                    divisor = scale if scale != np.float32(0) else np.float32(np.inf)
                    if wide:
                        round_group(x, divisor, np.float32(-127), np.float32(127), np.int8(-128), codes)
                    else:
                        round_group(x, divisor, np.float32(-8), np.float32(7), np.int8(8), codes)
                    data[scale_at], data[scale_at + 1] = bits & 255, (bits >> 8) & 255
                    place_codes(wide, codes, data, at)


@kernel(parallel=True)
def pack_codes(values, scales, geometry, wide, blank, size, data, base, stride, threads):  # type: ignore[no-untyped-def]
    """Lays out stored integers (`wide`: int8, else of 4 bits) with their scales of `size` bytes, 16 rows a panel.

    `blank` is the code of rows and columns that are not there.
    """
    rows, cols, coding, row_bytes, group_bytes, _, scale_row, scale_bytes, span = geometry
    groups, scaled = (cols + 31) // 32, 4 // size
    weight_bytes = 512 if wide else 256
    panels = (rows + 15) // 16
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        codes = np.empty(32, np.uint8)
        while True:
            panel = next_task(counter)
            if panel >= panels:
                break
            for row in range(16):
                n = panel * 16 + row
                for g in range(groups):
                    if n < rows:
                        group_codes(coding, values, n * row_bytes + g * group_bytes, codes)
                    for i in range(cols - g * 32 if n < rows else 0, 32):
                        codes[i] = blank
                    block = base + panel * stride + g // scaled * (scaled * weight_bytes + 64)
                    place = g % scaled
                    place_codes(wide, codes, data, block + place * weight_bytes + row * 4)
                    at = block + scaled * weight_bytes + (place * 16 + row) * size
                    scale_at = n * scale_row + g // span * scale_bytes
                    for i in range(size):
                        data[at + i] = scales[scale_at + i] if n < rows else 0


@device
def has_nan(codes, start, count):  # type: ignore[no-untyped-def]
    """Whether one of `count` E4M3 codes from a byte on is NaN."""
    nans = 0
    for i in range(start, start + count):
        nans += (codes[i] & 0x7F) == 0x7F
    return nans > 0


@kernel(parallel=True)
def pack_floats(values, scales, geometry, kept, size, data, base, stride, threads):  # type: ignore[no-untyped-def]
    """Lays out floats of `size` bytes, 4 rows a panel: as stored with their scales after them (`kept`), else made f32
    (4 bytes) or bfloat16 (2). What is not there is left as it is in `data`.

    The scale of a block of fp8 with a NaN in this row becomes NaN, as does any sum over it: kernels need not look.
    """
    rows, cols, coding, row_bytes, group_bytes, scaled_by, scale_row, scale_bytes, span = geometry
    groups, chunks = (cols + 31) // 32, (cols + 15) // 16
    chunk_bytes = 16 * size
    blocks = (groups + span - 1) // span if kept and scale_bytes else 0  # f32 scales a row
    panels = (rows + 3) // 4
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        x = np.empty(32, np.float32)
        made = x.view(np.uint8)
        while True:
            panel = next_task(counter)
            if panel >= panels:
                break
            start = base + panel * stride
            for row in range(min(4, rows - panel * 4)):
                n = panel * 4 + row
                for g in range(groups):
                    at = n * row_bytes + g * group_bytes
                    if not kept:
                        scale_at = n * scale_row + g // span * scale_bytes
                        group_floats(coding, values, at, scaled_by, scales, scale_at, x)
                        for i in range(cols - g * 32, 32):
                            x[i] = 0
                        if size == 2:
                            narrow_group(x)
                    for c in range(2 * g, min(chunks, 2 * g + 2)):
                        target = start + (c * 4 + row) * chunk_bytes
                        if kept:
                            copy_chunk(size, values, at + (c & 1) * chunk_bytes, data, target)
                        else:
                            copy_chunk(size, made, (c & 1) * chunk_bytes, data, target)
                for block in range(blocks):
                    first, last = block * span * 32, min(cols, (block + 1) * span * 32)
                    at = start + (chunks * chunk_bytes + row * blocks + block) * 4
                    nan = has_nan(values, n * row_bytes + first, last - first)
                    for i in range(4):
                        given = scales[n * scale_row + block * scale_bytes + i]
                        data[at + i] = (0x7FC00000 >> (8 * i)) & 0xFF if nan else given
