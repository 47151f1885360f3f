"""The inner tile of the float path: 4 rows of weights in their stored dtype times some tokens of f32.

A panel is 4 rows, 16 columns at a time: [columns / 16][4 rows][16], columns filled up with zeros. For fp8 the
scales follow: f32 [4 rows][blocks of columns].

Each of 16 lanes takes the elements with its index mod 16, by fma in increasing order, with weights widened
exactly (fp8: code times scale, rounded to f32); then the upper half of the lanes is added to the lower until
one is left.
"""

from typing import Any

from numba import types

from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.integer_tile import half_to_float
from engine.kernels.ir import I8, I16, I32, I64, Builder, Value, constant, load, offset, splat, vector
from engine.kernels.isa import isa

FLOAT_KINDS = ("f32", "bf16", "f16", "fp8")
FLOAT_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}
FLOAT_ROWS = 4  # rows of a panel
FLOAT_WIDE = 6 if isa().lanes == 16 else 2  # the most tokens a tile takes

FLOATS = vector(w.F32, 16)
INTS = vector(I32, 16)


def e4m3_to_float(builder: Builder, codes: Value) -> Value:
    """i8 lanes of E4M3 as f32, exactly: the bits of an f32 that is 2 ** -120 times too small, then NaN put
    in.
    """
    b, lanes = builder, codes.type.count
    floats, ints = vector(w.F32, lanes), vector(I32, lanes)
    wide = b.zext(codes, ints)
    size = b.and_(wide, constant(ints, 0x7F))
    scaled = b.fmul(b.bitcast(b.shl(size, constant(ints, 20)), floats), constant(floats, 2.0**120))
    nan = b.icmp_unsigned("==", size, constant(ints, 0x7F))
    value = b.select(nan, constant(ints, 0x7FC00000), b.bitcast(scaled, ints))
    return b.bitcast(b.or_(value, b.shl(b.and_(wide, constant(ints, 0x80)), constant(ints, 24))), floats)


def widen(builder: Builder, kind: str, pointer: Value) -> Value:
    """16 stored floats as f32 lanes (fp8 without its scale)."""
    if kind == "f32":
        return load(builder, pointer, FLOATS, 4)
    if kind == "fp8":
        return e4m3_to_float(builder, load(builder, pointer, vector(I8, 16), 1))
    bits = load(builder, pointer, vector(I16, 16), 2)
    if kind == "bf16":
        return builder.bitcast(builder.shl(builder.zext(bits, INTS), constant(INTS, 16)), FLOATS)
    return half_to_float(builder, bits, isa().half)


def _tile(builder: Builder, kind: str, tokens: int, p: dict[str, Value]) -> None:
    """Code for `tokens` tokens; `p` holds pointers and sizes (see `float_tile`)."""
    b = builder
    last = b.sub(p["count"], constant(I64, 1))
    xs = []
    for token in range(tokens):
        t = constant(I64, token)
        nearest = b.add(p["first"], b.select(b.icmp_signed("<", t, last), t, last))
        row = b.load(offset(b, p["index"], nearest))
        xs.append(offset(b, p["x"], b.mul(row, b.mul(p["chunks"], constant(I64, 16)))))
    zero = constant(FLOATS, 0.0)
    totals = [[w.variable(b, zero) for _ in range(FLOAT_ROWS)] for _ in range(tokens)]
    step = 16 * FLOAT_BYTES[kind]
    scales = offset(b, p["panel"], b.mul(p["chunks"], constant(I64, FLOAT_ROWS * step)))
    with w.cgutils.for_range(b, p["chunks"], intp=I64) as loop:
        at = offset(b, p["panel"], b.mul(loop.index, constant(I64, FLOAT_ROWS * step)))
        x = [
            load(b, offset(b, xs[token], b.mul(loop.index, constant(I64, 16))), FLOATS, 4)
            for token in range(tokens)
        ]
        for row_number in range(FLOAT_ROWS):
            weights = widen(b, kind, offset(b, at, row_number * step))
            if kind == "fp8":
                block = b.sdiv(loop.index, p["block"])
                which = b.add(b.mul(constant(I64, row_number), p["blocks"]), block)
                scale = load(b, offset(b, scales, b.mul(which, constant(I64, 4))), w.F32, 4)
                weights = b.fmul(weights, splat(b, scale, 16))
            for token in range(tokens):
                slot = totals[token][row_number]
                b.store(w.fma(b, weights, x[token], b.load(slot)), slot)
    for token in range(tokens):
        for row_number in range(FLOAT_ROWS):
            total = w.sum_lanes(b, b.load(totals[token][row_number]))
            line = offset(b, p["out"], b.mul(p["stride"], constant(I64, token)))
            b.store(total, offset(b, line, row_number))


def _make_tile(most: int) -> Any:
    """The tile as an intrinsic, for at most so many tokens."""

    @intrinsic
    def tile(
        typing_context: Any, kind: Any, data: Any, start: Any, chunks: Any, block: Any, x: Any, index: Any,
        first: Any,
        count: Any, out: Any, place: Any, stride: Any,
    ) -> Any:  # fmt: skip
        if not isinstance(kind, types.IntegerLiteral):
            return None
        name = FLOAT_KINDS[kind.literal_value]

        def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
            kinds = signature.args

            def pointer(position: int, element: Any) -> Value:
                return w.data_pointer(context, builder, kinds[position], a[position], element)

            one = constant(I64, 1)
            p = {
                "panel": offset(builder, pointer(1, I8), a[2]), "chunks": a[3], "block": a[4], "x": pointer(5,
                w.F32),
                "blocks": builder.add(builder.sdiv(builder.sub(a[3], one), a[4]), one), "index": pointer(6, I64),
                "first": a[7], "count": a[8], "out": offset(builder, pointer(9, w.F32), a[10]),
                "stride": a[11],
            }  # fmt: skip
            w.by_count(
                builder, p, sorted({1, most}), f"float_tile_{name}",
                lambda body, tokens, arguments: _tile(body, name, tokens, arguments),
            )  # fmt: skip
            return context.get_dummy_value()

        i = types.intp
        return types.void(kind, data, i, i, i, x, index, i, i, out, i, i), generate

    return tile


float_tile = _make_tile(FLOAT_WIDE)
"""float_tile(kind, data, start, chunks, block, x, index, first, count, out, place, stride)

out[place + t · stride + r] = row r of the panel at byte `start` of `data` times row index[first + t]
of x.

For t < count <= FLOAT_WIDE; up to FLOAT_WIDE lines of `out` are overwritten. kind: a constant, place in
FLOAT_KINDS. x f32 [N, 16 · chunks], index int64, out f32; all contiguous. `block`: chunks of 16 columns
that share an fp8 scale.
"""

row_float_tile = _make_tile(1)
"""`float_tile` for one token: the code for more is not compiled into kernels that never see more."""
