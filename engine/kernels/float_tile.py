"""The inner tile of the float path: 4 rows of weights in their stored dtype times some tokens of f32.

A panel is 4 rows, 16 columns at a time: [columns / 16][4 rows][16], columns filled up with zeros. For fp8 the
scales follow: f32 [4 rows][blocks of columns], NaN where a code of the row in the block is.

Each of 16 lanes takes the elements with its index mod 16, by fma in increasing order, with weights widened
exactly (fp8: code times scale, rounded to f32); then the upper half of the lanes is added to the lower until
one is left.
"""

from typing import Any

from numba import types

from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.integer_tile import NARROW_AHEAD, half_to_float
from engine.kernels.ir import I8, I16, I32, I64, Builder, Value, constant, load, offset, splat, vector
from engine.kernels.isa import isa

FLOAT_KINDS = ("f32", "bf16", "f16", "fp8")
FLOAT_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}
FLOAT_ROWS = 4  # rows of a panel
BLOCKED = isa().lanes == 8  # whether tiles are those of `_blocked_tile`
FLOAT_WIDE = {16: 6, 8: 24}.get(isa().lanes, 2)  # the most tokens a tile takes
BLOCK = 32  # chunks of 16 columns; what a pass over them reads has to fit the first cache
GROUPS = {1: 1, 2: 2, 3: 3, 4: 2}  # tokens that a pass takes, of so few; of more it takes 3

FLOATS = vector(w.F32, 16)
HALF = vector(w.F32, 8)


def finite_e4m3_to_float(builder: Builder, codes: Value) -> Value:
    """i8 lanes of E4M3 as f32, exactly: the bits of an f32 that is 2 ** -120 times too small. NaN becomes 480."""
    b, lanes = builder, codes.type.count
    floats, ints = vector(w.F32, lanes), vector(I32, lanes)
    # The sign is carried along: to widen codes, signs and masks apart takes as long as all the rest.
    small = b.and_(b.shl(b.sext(codes, ints), constant(ints, 20)), constant(ints, 0x87F00000))
    return b.fmul(b.bitcast(small, floats), constant(floats, 2.0**120))


def e4m3_to_float(builder: Builder, codes: Value) -> Value:
    """i8 lanes of E4M3 as f32, exactly, NaN among them."""
    b, lanes = builder, codes.type.count
    floats, ints = vector(w.F32, lanes), vector(I32, lanes)
    bits = b.bitcast(finite_e4m3_to_float(b, codes), ints)
    positive = b.bitcast(b.and_(bits, constant(ints, 0x7FFFFFFF)), floats)
    nan = b.sext(b.fcmp_ordered("==", positive, constant(floats, 480.0)), ints)
    return b.bitcast(b.xor(bits, b.and_(nan, constant(ints, 0x43F00000 ^ 0x7FC00000))), floats)


def widen(builder: Builder, kind: str, pointer: Value, lanes: int = 16) -> Value:
    """So many stored floats as f32 lanes (fp8 without its scale, which is NaN where a code is)."""
    floats, ints = vector(w.F32, lanes), vector(I32, lanes)
    if kind == "f32":
        return load(builder, pointer, floats, 4)
    if kind == "fp8":
        return finite_e4m3_to_float(builder, load(builder, pointer, vector(I8, lanes), 1))
    bits = load(builder, pointer, vector(I16, lanes), 2)
    if kind == "bf16":
        return builder.bitcast(builder.shl(builder.zext(bits, ints), constant(ints, 16)), floats)
    return half_to_float(builder, bits, isa().half)


def _x_row(b: Builder, p: dict[str, Value], token: Value) -> Value:
    """Where the row of x of a token begins, see `ir.row_of`."""
    return offset(b, p["x"], b.mul(w.row_of(b, p, token), b.mul(p["chunks"], constant(I64, 16))))


def _scale(b: Builder, p: dict[str, Value], chunk: Value, row: int, lanes: int) -> Value:
    """The fp8 scale of a chunk in a row of the panel, in each lane."""
    scales = offset(b, p["panel"], b.mul(p["chunks"], constant(I64, FLOAT_ROWS * 16 * FLOAT_BYTES["fp8"])))
    which = b.add(b.mul(constant(I64, row), p["blocks"]), b.sdiv(chunk, p["block"]))
    return splat(b, load(b, offset(b, scales, b.mul(which, constant(I64, 4))), w.F32, 4), lanes)


def _tile(builder: Builder, kind: str, tokens: int, p: dict[str, Value]) -> None:
    """Code for `tokens` tokens; `p` holds pointers and sizes (see `float_tile`)."""
    b = builder
    xs = [_x_row(b, p, constant(I64, token)) for token in range(tokens)]
    zero = constant(FLOATS, 0.0)
    totals = [[w.variable(b, zero) for _ in range(FLOAT_ROWS)] for _ in range(tokens)]
    step = 16 * FLOAT_BYTES[kind]
    with w.cgutils.for_range(b, p["chunks"], intp=I64) as loop:
        at = offset(b, p["panel"], b.mul(loop.index, constant(I64, FLOAT_ROWS * step)))
        x = [
            load(b, offset(b, xs[token], b.mul(loop.index, constant(I64, 16))), FLOATS, 4)
            for token in range(tokens)
        ]
        for row_number in range(FLOAT_ROWS):
            weights = widen(b, kind, offset(b, at, row_number * step))
            if kind == "fp8":
                weights = b.fmul(weights, _scale(b, p, loop.index, row_number, 16))
            for token in range(tokens):
                slot = totals[token][row_number]
                b.store(w.fma(b, weights, x[token], b.load(slot)), slot)
    for token in range(tokens):
        for row_number in range(FLOAT_ROWS):
            total = w.sum_lanes(b, b.load(totals[token][row_number]))
            line = offset(b, p["out"], b.mul(p["stride"], constant(I64, token)))
            b.store(total, offset(b, line, row_number))


def _blocked_tile(builder: Builder, kind: str, tokens: int, p: dict[str, Value]) -> None:
    """`_tile` where there are 16 registers of 8 lanes, as many as the totals of 4 rows and 2 tokens would fill.

    So columns are taken in blocks, and a block in passes: 4 rows times 3 tokens in half of the lanes are 12 totals,
    kept in memory from block to block. Where many tokens share a block, its weights are widened once for all.
    """
    b, group = builder, GROUPS.get(tokens, 3)
    widened = kind != "f32" and tokens not in GROUPS
    rows, some, step = range(FLOAT_ROWS), constant(I64, group), 16 * FLOAT_BYTES[kind]
    groups = b.sdiv(b.add(p["count"], constant(I64, group - 1)), some) if tokens > group else constant(I64, 1)
    room = -(-tokens // group) * group  # tokens, and those beyond the last of the last group
    kept = w.cgutils.alloca_once(b, HALF, constant(I64, room * 2 * FLOAT_ROWS))
    xs = w.cgutils.alloca_once(b, w.F32.as_pointer(), constant(I64, room))
    wide = w.cgutils.alloca_once(b, HALF, constant(I64, BLOCK * 2 * FLOAT_ROWS if widened else 1))

    def total(token: Value, half: int, row: int) -> Value:
        return offset(
            b, offset(b, kept, b.mul(token, constant(I64, 2 * FLOAT_ROWS))), half * FLOAT_ROWS + row
        )

    with w.cgutils.for_range(b, b.mul(groups, some), intp=I64) as each:
        b.store(_x_row(b, p, each.index), offset(b, xs, each.index))
        for half in range(2):
            for row in rows:
                b.store(constant(HALF, 0.0), total(each.index, half, row))

    def factors(chunk: Value) -> list[Value]:
        return [_scale(b, p, chunk, row, 8) for row in rows] if kind == "fp8" else []

    size = p["chunks"] if tokens == 1 else constant(I64, BLOCK)
    if kind == "fp8" and not widened:
        size = p["block"]  # of one scale a row
    blocks = b.sdiv(b.add(p["chunks"], b.sub(size, constant(I64, 1))), size)
    with w.cgutils.for_range(b, blocks, intp=I64) as outer:
        first = b.mul(outer.index, size)
        left = b.sub(p["chunks"], first)
        chunks = b.select(b.icmp_signed("<", left, size), left, size)
        panel = offset(b, p["panel"], b.mul(first, constant(I64, FLOAT_ROWS * step)))

        def weights(chunk: Value, half: int, row: int, scales: list[Value]) -> Value:
            at = offset(b, panel, b.mul(chunk, constant(I64, FLOAT_ROWS * step)))
            value = widen(b, kind, offset(b, at, row * step + half * step // 2), 8)
            return b.fmul(value, scales[row]) if scales else value

        def ask(chunk: Value) -> None:
            at = offset(b, panel, b.mul(chunk, constant(I64, FLOAT_ROWS * step)))
            w.prefetch_lines(b, offset(b, at, NARROW_AHEAD), FLOAT_ROWS * step)

        def place(chunk: Value, half: int, row: int) -> Value:
            return offset(b, offset(b, wide, b.mul(chunk, constant(I64, 2 * FLOAT_ROWS))), 2 * row + half)

        if widened:
            with w.cgutils.for_range(b, chunks, intp=I64) as inner:
                ask(inner.index)
                scales = factors(b.add(first, inner.index))
                for row in rows:
                    for half in range(2):
                        b.store(weights(inner.index, half, row, scales), place(inner.index, half, row))
        else:
            scales = factors(first)
        with w.cgutils.for_range(b, groups, intp=I64) as several:
            members = [b.add(b.mul(several.index, some), constant(I64, t)) for t in range(group)]
            begin = b.mul(first, constant(I64, 16))
            starts = [offset(b, b.load(offset(b, xs, token)), begin) for token in members]
            for halves in ((0, 1),) if group == 1 else ((0,), (1,)):
                keys = [(half, row, t) for half in halves for row in rows for t in range(group)]
                totals = {
                    (half, row, t): w.variable(b, b.load(total(members[t], half, row)))
                    for half, row, t in keys
                }
                with w.cgutils.for_range(b, chunks, intp=I64) as inner:
                    at = b.mul(inner.index, constant(I64, 16))
                    if tokens in GROUPS and 0 in halves:
                        ask(inner.index)
                    for half in halves:
                        x = [
                            load(b, offset(b, start, b.add(at, constant(I64, 8 * half))), HALF, 4)
                            for start in starts
                        ]
                        for row in rows:
                            if widened:
                                value = b.load(place(inner.index, half, row))
                            else:
                                value = weights(inner.index, half, row, scales)
                            for t in range(group):
                                slot = totals[half, row, t]
                                b.store(w.fma(b, value, x[t], b.load(slot)), slot)
                for half, row, t in keys:
                    b.store(b.load(totals[half, row, t]), total(members[t], half, row))
    with w.cgutils.for_range(b, p["count"], intp=I64) as each:
        line = offset(b, p["out"], b.mul(p["stride"], each.index))
        for row in rows:
            low, high = (b.load(total(each.index, half, row)) for half in range(2))
            b.store(w.sum_lanes(b, b.fadd(low, high)), offset(b, line, row))


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
            write = _blocked_tile if BLOCKED else _tile
            sizes = {1, most, *GROUPS} if BLOCKED and most > 1 else {1, most}
            w.by_count(
                builder, p, sorted(sizes), f"float_tile_{name}",
                lambda body, tokens, arguments: write(body, name, tokens, arguments),
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
