"""Groups of 32 values in a stored coding (see `engine.formats.grouped_bytes`), taken apart as vector code.

Every coding is read in one place, as floats or as integers; what becomes of them is up to the packing kernels.
"""

from functools import partial
from typing import Any

from numba import types

from engine.formats import BYTES, Coding
from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.float_tile import e4m3_to_float
from engine.kernels.integer_dot import doubled_e2m1
from engine.kernels.integer_tile import SCALES, half_to_float, widen_scales
from engine.kernels.ir import I8, I16, I32, Value, constant, load, offset, splat, store, vector
from engine.kernels.isa import isa
from engine.kernels.quantize import FLOATS, GROUP, INTS

CODINGS = tuple(BYTES)
INTEGER_CODINGS: tuple[Coding, ...] = ("int8", "int4", "int4_halves", "e2m1", "e2m1_halves")
SCALED_BY = (*SCALES, "")  # types of scales; the last: none

CODES = vector(I8, GROUP)


def _codes(builder: Any, coding: Coding, pointer: Value) -> Value:
    """32 stored integers, one a lane, as they are."""
    b = builder
    if coding == "int8":
        return load(b, pointer, CODES)
    packed = load(b, pointer, vector(I8, 16))
    low, high = b.and_(packed, constant(packed.type, 15)), b.lshr(packed, constant(packed.type, 4))
    if coding.endswith("_halves"):
        return w.shuffle(b, low, high, list(range(GROUP)))
    return w.shuffle(b, low, high, [place // 2 + 16 * (place % 2) for place in range(GROUP)])


def _floats(builder: Any, coding: Coding, pointer: Value) -> Value:
    """32 stored values as f32, without their scale."""
    b = builder
    if coding == "f32":
        return load(b, pointer, FLOATS)
    if coding in ("f16", "bf16"):
        bits = load(b, pointer, vector(I16, GROUP))
        if coding == "f16":
            return half_to_float(b, bits, isa().half)
        return b.bitcast(b.shl(b.zext(bits, INTS), constant(INTS, 16)), FLOATS)
    if coding == "e4m3":
        return e4m3_to_float(b, load(b, pointer, CODES))
    codes = _codes(b, coding, pointer)
    if coding in ("int4", "int4_halves"):
        codes = b.sub(codes, constant(CODES, 8))
    elif coding in ("e2m1", "e2m1_halves"):
        codes = doubled_e2m1(b, codes)
    return b.sitofp(codes, FLOATS)


def _scale(builder: Any, kind: str, pointer: Value) -> Value:
    """What a stored scale multiplies by, f32."""
    if not kind:
        return constant(w.F32, 1.0)
    return builder.extract_element(widen_scales(builder, kind, pointer, 1, isa().half), constant(I32, 0))


def _panel_codes(builder: Any, coding: Coding, pointer: Value) -> Value:
    """32 stored integers as the panels of their kind hold them: q8 offset by 128, codes of 4 bits as stored."""
    b, codes = builder, _codes(builder, coding, pointer)
    if coding == "int8":
        return b.xor(codes, constant(CODES, -128))
    if coding == "e2m1_halves":  # the zero with a sign becomes the other
        return b.select(b.icmp_unsigned("==", codes, constant(CODES, 8)), constant(CODES, 0), codes)
    return codes


@intrinsic
def group_floats(
    typing_context: Any, coding: Any, values: Any, at: Any, scaled_by: Any, scales: Any, scale_at: Any, out: Any
) -> Any:  # fmt: skip
    """out[0:32] (f32) = the values that the bytes from values[at] on stand for, times the scale at scales[scale_at].

    coding: a place in CODINGS; scaled_by: a place in SCALED_BY.
    """

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        source = offset(b, w.data_pointer(context, b, kinds[1], a[1], I8), a[2])
        scale_source = offset(b, w.data_pointer(context, b, kinds[4], a[4], I8), a[5])
        floats = w.by_number(b, a[0], [partial(_floats, b, coding, source) for coding in CODINGS])
        factor = w.by_number(b, a[3], [partial(_scale, b, kind, scale_source) for kind in SCALED_BY])
        target = w.data_pointer(context, b, kinds[6], a[6], w.F32)
        store(b, b.fmul(floats, splat(b, factor, GROUP)), target, 4)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, values, i, i, scales, i, out), generate


@intrinsic
def group_codes(typing_context: Any, coding: Any, values: Any, at: Any, out: Any) -> Any:
    """out[0:32] (uint8) = the integers in the bytes from values[at] on, as panels hold them.

    coding: a place in CODINGS, of an integer coding.
    """

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        source = offset(b, w.data_pointer(context, b, kinds[1], a[1], I8), a[2])
        first = constant(w.I64, CODINGS.index(INTEGER_CODINGS[0]))
        codes = w.by_number(
            b, b.sub(a[0], first), [partial(_panel_codes, b, coding, source) for coding in INTEGER_CODINGS]
        )
        store(b, codes, w.data_pointer(context, b, kinds[3], a[3], I8))
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, values, i, out), generate
