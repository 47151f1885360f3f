"""Rounding a group of 32 f32 to integers with one scale, as vector code: rows for the kernels, outputs of
experts.
"""

from typing import Any

from numba import types

from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.ir import I8, I16, I32, I64, Value, call, constant, load, offset, splat, store, vector

GROUP = 32
ROUNDER = 12582912.0  # 1.5 · 2**23: adding and subtracting it rounds |x| < 2**22 half to even
INTEGERS = {8: I8, 16: I16}
pair: Any = types.Tuple
FLOATS, INTS = vector(w.F32, GROUP), vector(I32, GROUP)


def largest(builder: Any, value: Value) -> Value:
    """The largest lane of a float vector, by comparisons."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low = w.shuffle(builder, value, value, list(range(lanes)))
        high = w.shuffle(builder, value, value, list(range(lanes, 2 * lanes)))
        value = builder.select(builder.fcmp_ordered(">", high, low), high, low)
    return builder.extract_element(value, constant(I32, 0))


def _round(b: Any, x: Value, limit: Value) -> tuple[Value, Value, Value]:
    """32 floats -> integers, scale, sums."""
    top = largest(b, call(b, "llvm.fabs.v32f32", FLOATS, [x]))
    scale = b.fdiv(top, limit)
    usable = b.fcmp_ordered(">", scale, constant(w.F32, 0.0))
    divisor = b.select(usable, scale, constant(w.F32, float("inf")))
    rounder = constant(FLOATS, ROUNDER)
    value = b.fsub(b.fadd(b.fdiv(x, splat(b, divisor, GROUP)), rounder), rounder)
    high, low = splat(b, limit, GROUP), splat(b, b.fneg(limit), GROUP)
    value = b.select(b.fcmp_ordered("<", value, high), value, high)
    value = b.select(b.fcmp_ordered(">", value, low), value, low)
    whole = b.fptosi(value, INTS)
    return whole, scale, _sums(b, whole)


def _sums(b: Any, whole: Value) -> Value:
    """Two sums of 32 integers: of the first two of every 4 in the lower 16 bits, of the others in the upper."""
    first = [four + one for four in range(0, GROUP, 4) for one in (0, 1)]
    low, high = (
        call(b, "llvm.vector.reduce.add.v16i32", I32, [w.shuffle(b, whole, whole, places)])
        for places in (first, [place + 2 for place in first])
    )
    return b.or_(b.shl(high, constant(I32, 16)), b.and_(low, constant(I32, 0xFFFF)))


@intrinsic
def quantize_group(
    typing_context: Any, x: Any, start: Any, count: Any, limit: Any, q: Any, at: Any, room: Any
) -> Any:
    """Rounds x.flat[start : start + count], count <= 32, by the rule of `rows` with `limit` (127.0 or
    32767.0).

    Writes `room` integers (at most 32; zeros beyond count) from q.flat[at] on; returns the f32 scale and, of int8, the
    sums as `rows` has them. x contiguous f32, q contiguous int8 or int16.
    """
    result = pair((types.float32, types.int32))

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        narrow = INTEGERS[kinds[4].dtype.bitwidth]
        source = offset(b, w.data_pointer(context, b, kinds[0], a[0], w.F32), a[1])
        target = offset(b, w.data_pointer(context, b, kinds[4], a[4], narrow), a[5])
        values = w.cgutils.alloca_once(b, FLOATS)
        b.store(constant(FLOATS, 0.0), values)
        whole_group = b.icmp_signed("==", a[2], constant(I64, GROUP))
        with b.if_else(whole_group) as (then, otherwise):
            with then:
                b.store(load(b, source, FLOATS, 4), values)
            with otherwise:
                single = b.bitcast(values, w.F32.as_pointer())
                with w.cgutils.for_range(b, a[2], intp=I64) as loop:
                    b.store(b.load(offset(b, source, loop.index)), offset(b, single, loop.index))
        whole, scale, total = _round(b, b.load(values), a[3])
        small = b.trunc(whole, vector(narrow, GROUP))
        with b.if_else(b.icmp_signed("==", a[6], constant(I64, GROUP))) as (then, otherwise):
            with then:
                store(b, small, target, 1)
            with otherwise:
                held = w.cgutils.alloca_once(b, small.type)
                b.store(small, held)
                single = b.bitcast(held, narrow.as_pointer())
                with w.cgutils.for_range(b, a[6], intp=I64) as loop:
                    b.store(b.load(offset(b, single, loop.index)), offset(b, target, loop.index))
        return context.make_tuple(b, result, [scale, total])

    i = types.intp
    return result(x, i, i, types.float32, q, i, i), generate


@intrinsic
def combine_group(
    typing_context: Any, values: Any, start: Any, stride: Any, scale: Any, scale_start: Any, scale_stride: Any,
    weights: Any, first: Any, count: Any, out: Any, place: Any,
) -> Any:  # fmt: skip
    """out.flat[place + i] = sum over j < count of weights.flat[first + j] · (value j)[i], i < 32, by fma in
    increasing j.

    (value j)[i] is values.flat[start + j · stride + i] times scale.flat[scale_start + j · scale_stride]. values int16,
    the others f32, all contiguous.
    """

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, kinds = builder, signature.args
        source = offset(b, w.data_pointer(context, b, kinds[0], a[0], I16), a[1])
        units = offset(b, w.data_pointer(context, b, kinds[3], a[3], w.F32), a[4])
        shares = offset(b, w.data_pointer(context, b, kinds[6], a[6], w.F32), a[7])
        target = offset(b, w.data_pointer(context, b, kinds[9], a[9], w.F32), a[10])
        total = w.cgutils.alloca_once(b, FLOATS)
        b.store(constant(FLOATS, 0.0), total)
        with w.cgutils.for_range(b, a[8], intp=I64) as loop:
            whole = load(b, offset(b, source, b.mul(loop.index, a[2])), vector(I16, GROUP), 2)
            unit = splat(b, b.load(offset(b, units, b.mul(loop.index, a[5]))), GROUP)
            share = splat(b, b.load(offset(b, shares, loop.index)), GROUP)
            value = b.fmul(b.sitofp(whole, FLOATS), unit)
            b.store(w.fma(b, share, value, b.load(total)), total)
        store(b, b.load(total), target, 4)
        return context.get_dummy_value()

    i = types.intp
    return types.void(values, i, i, scale, i, i, weights, i, i, out, i), generate
