"""The inner tile of the integer path: 16 rows of packed weights times some tokens.

A panel is 16 rows, one stretch of memory that is read once from its start to its end: blocks of the weights of
`SCALED` groups and then the 64 bytes of their scales, 16 a group. A last block that is not full is filled
up with zeros. A group's weights are 512 bytes for q8: [8 steps][16 rows][4 inputs]; 256 for the 4-bit formats,
where byte i of the first, second, … 64 holds step 0, 1, 2, 3 in its low and step 4, 5, 6, 7 in its high half.

Across groups: acc = fma(float(dot), weight_scale · x_scale, acc), in f32, in increasing order.
"""

from typing import Any

from numba import types

from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.integer_dot import WRITERS
from engine.kernels.ir import I8, I16, I32, I64, Builder, Value, constant, load, offset, splat, store, vector
from engine.kernels.isa import ISAS, isa

KINDS = ("q8", "q4", "int4", "mxfp4")
SCALES = ("f16", "bf16", "f32", "e8m0")
SCALE_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "e8m0": 1}
SCALED = {kind: 4 // size for kind, size in SCALE_BYTES.items()}  # groups whose scales fill 64 bytes
WIDE = isa().tokens  # the most tokens a tile takes
NARROW_AHEAD = 1024
"""Bytes in advance that weights of any format are asked for where registers hold fewer than 16 floats."""


def weight_bytes(kind: str) -> int:
    """Bytes of a group's weights, 16 rows."""
    return 512 if kind == "q8" else 256


def ahead(lanes: int, kind: str, tokens: int) -> tuple[int, int]:
    """How many bytes in advance weights are asked for, and how near (see `ir.prefetch`), as was measured; 0 where the
    processor reads on by itself as fast.
    """
    if lanes < 16:
        return NARROW_AHEAD, 3
    if tokens == 1:
        return (4096 if kind == "q8" else 0), 2
    return (0 if tokens == 2 else 16384), 2


def block_bytes(kind: str, scale_kind: str) -> int:
    """Bytes of a block: the weights of some groups, and their scales."""
    return SCALED[scale_kind] * weight_bytes(kind) + 64


def widen_scales(builder: Builder, kind: str, pointer: Value, lanes: int, half: bool) -> Value:
    """`lanes` stored scales as f32."""
    floats, ints = vector(w.F32, lanes), vector(I32, lanes)
    if kind == "f32":
        return load(builder, pointer, floats, 4)
    if (
        kind == "e8m0"
    ):  # half of 2 ** (code - 127), the values being doubled: 2 ** (code - 128), subnormal for 0 and 1
        code = builder.zext(load(builder, pointer, vector(I8, lanes), 1), ints)
        normal = builder.shl(builder.sub(code, constant(ints, 1)), constant(ints, 23))
        tiny = builder.shl(constant(ints, 0x200000), code)
        bits = builder.select(builder.icmp_unsigned("<", code, constant(ints, 2)), tiny, normal)
        nan = builder.icmp_unsigned("==", code, constant(ints, 255))
        return builder.bitcast(builder.select(nan, constant(ints, 0x7FC00000), bits), floats)
    bits = load(builder, pointer, vector(I16, lanes), 2)
    if kind == "bf16":
        return builder.bitcast(builder.shl(builder.zext(bits, ints), constant(ints, 16)), floats)
    return half_to_float(builder, bits, half)


def half_to_float(builder: Builder, bits: Value, half: bool) -> Value:
    """i16 lanes holding f16 as f32, exactly; by integer arithmetic where there is no instruction."""
    lanes = bits.type.count
    floats, ints = vector(w.F32, lanes), vector(I32, lanes)
    if half:
        return builder.fpext(builder.bitcast(bits, vector(w.F16, lanes)), floats)
    wide = builder.zext(bits, ints)
    sign = builder.shl(builder.and_(wide, constant(ints, 0x8000)), constant(ints, 16))
    size = builder.shl(builder.and_(wide, constant(ints, 0x7FFF)), constant(ints, 13))
    scaled = builder.fmul(builder.bitcast(size, floats), constant(floats, 2.0**112))
    special = builder.icmp_unsigned(">=", size, constant(ints, 0x7C00 << 13))
    value = builder.select(
        special, builder.or_(size, constant(ints, 0x7F800000)), builder.bitcast(scaled, ints)
    )
    return builder.bitcast(builder.or_(value, sign), floats)


def write_tile(
    builder: Builder, isa_name: str, kind: str, scale_kind: str, tokens: int, p: dict[str, Value]
) -> None:
    """Code for `tokens` tokens; `p` holds pointers and strides (see `integer_tile`)."""
    b, chosen = builder, ISAS[isa_name]
    writer = WRITERS[isa_name](b, kind, chosen.lanes)
    writer.chains = 4 if tokens == 1 else 1
    floats = vector(w.F32, chosen.lanes)
    size, scaled = weight_bytes(kind), SCALED[scale_kind]
    early, near = ahead(chosen.lanes, kind, tokens)
    xs, x_scales, x_sums = [], [], []
    for token in range(tokens):
        row = w.row_of(b, p, constant(I64, token))
        xs.append(offset(b, p["q"], b.mul(row, b.mul(p["groups"], constant(I64, 32)))))
        x_scales.append(offset(b, p["scale"], b.mul(row, p["groups"])))
        x_sums.append(offset(b, p["sums"], b.mul(row, p["groups"])))
    zero = constant(floats, 0.0)
    pieces = range(writer.pieces)
    totals = [[w.variable(b, zero) for _ in pieces] for _ in range(tokens)]
    with w.cgutils.for_range(b, p["groups"], intp=I64) as loop:
        g = loop.index
        block, place = b.udiv(g, constant(I64, scaled)), b.urem(g, constant(I64, scaled))
        start = offset(b, p["panel"], b.mul(block, constant(I64, block_bytes(kind, scale_kind))))
        group = offset(b, start, b.mul(place, constant(I64, size)))
        scales = offset(b, start, scaled * size)
        if early:
            w.prefetch_lines(b, offset(b, group, early), size, near)
            w.prefetch(b, offset(b, scales, early), near=near)
        at = offset(b, scales, b.mul(place, constant(I64, 16 * SCALE_BYTES[scale_kind])))
        w_scales = [
            widen_scales(
                b,
                scale_kind,
                offset(b, at, piece * chosen.lanes * SCALE_BYTES[scale_kind]),
                chosen.lanes,
                chosen.half,
            )
            for piece in pieces
        ]
        dots = writer.groups(
            group,
            [offset(b, x, b.mul(g, constant(I64, 32))) for x in xs],
            [b.load(offset(b, x, g)) for x in x_sums],
        )
        for token in range(tokens):
            x_scale = splat(b, b.load(offset(b, x_scales[token], g)), chosen.lanes)
            for piece in pieces:
                slot = totals[token][piece]
                scale = b.fmul(w_scales[piece], x_scale)
                b.store(w.fma(b, b.sitofp(dots[token][piece], floats), scale, b.load(slot)), slot)
    for token in range(tokens):
        for piece in pieces:
            line = offset(b, p["out"], b.mul(p["stride"], constant(I64, token)))
            store(b, b.load(totals[token][piece]), offset(b, line, piece * chosen.lanes), 4)


def make_tile(isa_name: str, most: int | None = None) -> Any:
    """The tile as an intrinsic for one instruction set, for at most so many tokens (None: as many as it takes);
    `integer_tile` is the one for the CPU at hand.
    """

    @intrinsic
    def tile(
        typing_context: Any, kind: Any, scale_kind: Any, data: Any, start: Any, groups: Any, q: Any,
        scale: Any, sums: Any,
        index: Any, first: Any, count: Any, out: Any, place: Any, stride: Any,
    ) -> Any:  # fmt: skip
        if not (isinstance(kind, types.IntegerLiteral) and isinstance(scale_kind, types.IntegerLiteral)):
            return None
        names = KINDS[kind.literal_value], SCALES[scale_kind.literal_value]

        def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
            kinds = signature.args

            def pointer(position: int, element: Any) -> Value:
                return w.data_pointer(context, builder, kinds[position], a[position], element)

            p = {
                "panel": offset(builder, pointer(2, I8), a[3]), "groups": a[4], "q": pointer(5, I8),
                "scale": pointer(6, w.F32), "sums": pointer(7, I32), "index": pointer(8, I64), "first": a[9],
                "count": a[10], "out": offset(builder, pointer(11, w.F32), a[12]), "stride": a[13],
            }  # fmt: skip
            wide = ISAS[isa_name].tokens if most is None else most
            # Where sequences are decoded together, few tokens share an expert.
            sizes = [size for size in (1, 2, 4, 8) if size < wide]
            w.by_count(
                builder, p, [*sizes, wide], f"integer_tile_{isa_name}_{names[0]}_{names[1]}",
                lambda body, tokens, arguments: write_tile(body, isa_name, *names, tokens, arguments),
            )  # fmt: skip
            return context.get_dummy_value()

        i = types.intp
        return types.void(kind, scale_kind, data, i, i, q, scale, sums, index, i, i, out, i, i), generate

    return tile


integer_tile = make_tile(isa().name)
"""integer_tile(kind, scale_kind, data, start, groups, q, scale, sums, index, first, count, out, place,
stride)

out[place + t · stride + r] = row r of the panel at byte `start` of `data` times activation row index[first +
t], for t < count <= WIDE. Up to WIDE lines of `out` are overwritten, also beyond count. `kind` and
`scale_kind` are constants: places in KINDS and SCALES. All arrays are contiguous: data uint8, q int8 [N, 32 ·
groups], scale f32 and sums int32 [N, groups], index int64, out f32.
"""

row_tile = make_tile(isa().name, 1)
"""`integer_tile` for one token: the code for more is not compiled into kernels that never see more."""
