"""Sums and dot products of f32 in the one fixed order of the float path, as device functions.

Lane j of 16 takes the elements with index ≡ j mod 16, in increasing order (products by fma); missing elements
count as 0; then the upper half of the lanes is added to the lower until one is left.
"""

from typing import Any

from numba import types

from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.integer_tile import half_to_float
from engine.kernels.ir import I1, I32, I64, constant, load, offset, vector
from engine.kernels.isa import isa
from engine.kernels.quantize import largest

FLOATS = vector(w.F32, 16)


def _accumulate(builder: Any, count: Any, loads: list[Any], combine: Any) -> Any:
    """Runs `combine(total, [vectors])` over chunks of 16; `loads` are f32 pointers. Returns the tree sum."""
    b = builder
    total = w.variable(b, constant(FLOATS, 0.0))
    chunks = b.lshr(count, constant(I64, 4))
    with w.cgutils.for_range(b, chunks, intp=I64) as loop:
        at = b.shl(loop.index, constant(I64, 4))
        b.store(
            combine(b.load(total), [load(b, offset(b, pointer, at), FLOATS, 4) for pointer in loads]), total
        )
    rest = b.and_(count, constant(I64, 15))
    with b.if_then(b.icmp_signed(">", rest, constant(I64, 0))):
        at = b.shl(chunks, constant(I64, 4))
        numbers = vector(I32, 16)
        limit = w.splat(b, b.trunc(rest, I32), 16)
        mask = b.icmp_signed("<", constant(numbers, list(range(16))), limit)
        values = []
        for pointer in loads:
            address = b.bitcast(offset(b, pointer, at), FLOATS.as_pointer())
            name, mask_kind = "llvm.masked.load.v16f32.p0", vector(I1, 16)
            masked = w.function(b, name, FLOATS, [address.type, I32, mask_kind, FLOATS])
            values.append(b.call(masked, [address, constant(I32, 4), mask, constant(FLOATS, 0.0)]))
        b.store(combine(b.load(total), values), total)
    return w.sum_lanes(b, b.load(total))


def _pointer(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return w.data_pointer(context, builder, kind, array, w.F32)


@intrinsic
def lane_sum(typing_context: Any, x: Any, start: Any, count: Any) -> Any:
    """Sum of `count` elements from x.flat[start]; x contiguous f32."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        pointer = offset(builder, _pointer(context, builder, signature.args[0], a[0]), a[1])
        return _accumulate(builder, a[2], [pointer], lambda total, values: builder.fadd(total, values[0]))

    return types.float32(x, types.intp, types.intp), generate


@intrinsic
def lane_max(typing_context: Any, x: Any, start: Any, count: Any) -> Any:
    """The largest of `count` >= 1 elements from x.flat[start]; x contiguous f32 without NaN."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b = builder
        pointer = offset(b, _pointer(context, b, signature.args[0], a[0]), a[1])
        best = w.cgutils.alloca_once(b, FLOATS)
        b.store(w.splat(b, b.load(pointer), 16), best)

        def take(value: Any) -> None:
            before = b.load(best)
            b.store(b.select(b.fcmp_ordered(">", value, before), value, before), best)

        chunks = b.lshr(a[2], constant(I64, 4))
        with w.cgutils.for_range(b, chunks, intp=I64) as loop:
            take(load(b, offset(b, pointer, b.shl(loop.index, constant(I64, 4))), FLOATS, 4))
        done = b.shl(chunks, constant(I64, 4))
        with w.cgutils.for_range(b, b.sub(a[2], done), intp=I64) as rest:
            take(w.splat(b, b.load(offset(b, pointer, b.add(done, rest.index))), 16))
        return largest(b, b.load(best))

    return types.float32(x, types.intp, types.intp), generate


@intrinsic
def lane_dot(typing_context: Any, x: Any, x_start: Any, y: Any, y_start: Any, count: Any) -> Any:
    """Sum of x.flat[x_start + i] · y.flat[y_start + i] for i < count; both contiguous f32."""

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        one = offset(builder, _pointer(context, builder, signature.args[0], a[0]), a[1])
        two = offset(builder, _pointer(context, builder, signature.args[2], a[2]), a[3])
        return _accumulate(
            builder, a[4], [one, two], lambda total, values: w.fma(builder, values[0], values[1], total)
        )

    return types.float32(x, types.intp, y, types.intp, types.intp), generate


@intrinsic
def cache_value(typing_context: Any, value: Any) -> Any:
    """An element of a cache as f32: uint16 are the bits of an f16, f32 is taken as it is."""
    if value == types.float32:
        return types.float32(value), lambda context, builder, signature, a: a[0]

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        one = builder.bitcast(a[0], vector(w.I16, 1))
        return builder.extract_element(half_to_float(builder, one, isa().half), constant(I32, 0))

    return types.float32(types.uint16), generate
