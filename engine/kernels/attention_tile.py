"""The two inner tiles of attention: scores of a block of keys, and the weighted sum of a block of values.

Keys and values are read as stored (uint16 bits of f16, or f32), 16 at a time; up to 4 query rows share each
load. Scores are dot products in the order of `lanes`; a weighted sum adds value after value by fma.
"""

from typing import Any

from numba import types

from engine.kernels import ir as w
from engine.kernels.compile import intrinsic
from engine.kernels.float_tile import BLOCKED, FLOATS, widen
from engine.kernels.ir import I16, I64, Builder, Value, constant, load, offset, splat

QUERIES = 4  # rows that share a load
AHEAD = 12  # keys that are asked for in advance: a head's keys lie apart, which no hardware foresees


def _scores(b: Builder, queries: int, kind: str, p: dict[str, Value]) -> None:
    sixteen = constant(I64, 16)
    rows = [
        offset(b, p["q"], b.mul(w.row_of(b, p, constant(I64, t)), b.mul(p["chunks"], sixteen)))
        for t in range(queries)
    ]
    lines = [b.mul(p["out_stride"], constant(I64, t)) for t in range(queries)]
    slots = [w.variable(b, constant(FLOATS, 0.0)) for _ in range(queries)]
    line = 32 if kind == "f16" else 16  # elements a cache line
    with w.cgutils.for_range(b, p["keys"], intp=I64) as loop:
        key = offset(b, p["k"], b.mul(loop.index, p["k_stride"]))
        later = offset(b, key, b.mul(p["k_stride"], constant(I64, AHEAD)))
        for slot in slots:
            b.store(constant(FLOATS, 0.0), slot)
        with w.cgutils.for_range(b, p["chunks"], intp=I64) as inner:
            at = b.mul(inner.index, sixteen)
            with b.if_then(b.icmp_signed("==", b.and_(at, constant(I64, line - 1)), constant(I64, 0))):
                w.prefetch(b, offset(b, later, at))
            values = widen(b, kind, offset(b, key, at))
            for row, slot in zip(rows, slots, strict=True):
                b.store(w.fma(b, values, load(b, offset(b, row, at), FLOATS, 4), b.load(slot)), slot)
        for slot, start in zip(slots, lines, strict=True):
            score = b.fmul(w.sum_lanes(b, b.load(slot)), p["scale"])
            b.store(score, offset(b, p["out"], b.add(start, loop.index)))


def _values(b: Builder, queries: int, kind: str, p: dict[str, Value]) -> None:
    sixteen = constant(I64, 16)
    weights = [offset(b, p["weights"], b.mul(p["w_stride"], constant(I64, t))) for t in range(queries)]
    outs = [offset(b, p["out"], b.mul(p["out_stride"], constant(I64, t))) for t in range(queries)]

    def place(out: Value, start: Value, chunk: int) -> Value:
        return offset(b, out, b.add(start, constant(I64, 16 * chunk)))

    def columns(first: Value, wide: int) -> None:
        """Sums of 16 · wide columns from chunk `first` on."""
        start = b.mul(first, sixteen)
        slots = [
            [
                w.variable(
                    b,
                    b.select(p["fresh"], constant(FLOATS, 0.0), load(b, place(out, start, chunk), FLOATS, 4)),
                )
                for chunk in range(wide)
            ]
            for out in outs
        ]
        with w.cgutils.for_range(b, p["keys"], intp=I64) as loop:
            at = offset(b, offset(b, p["v"], b.mul(loop.index, p["v_stride"])), start)
            later = offset(b, at, b.mul(p["v_stride"], constant(I64, AHEAD)))
            w.prefetch_lines(b, later, 16 * wide * (2 if kind == "f16" else 4))
            values = [widen(b, kind, offset(b, at, 16 * chunk)) for chunk in range(wide)]
            for row, weight in zip(slots, weights, strict=True):
                factor = splat(b, b.load(offset(b, weight, loop.index)), 16)
                for slot, value in zip(row, values, strict=True):
                    b.store(w.fma(b, factor, value, b.load(slot)), slot)
        for row, out in zip(slots, outs, strict=True):
            for chunk, slot in enumerate(row):
                # + 0: a sum of -0 depends on whether keys of weight 0 followed
                total = b.fadd(b.load(slot), constant(FLOATS, 0.0))
                w.store(b, total, place(out, start, chunk), 4)

    wide = 8 if queries == 1 else 4
    if BLOCKED:  # 16 registers of 8 lanes hold the totals, the values and a weight
        wide = 4 if queries == 1 else 1
    whole = b.sdiv(p["chunks"], constant(I64, wide))
    with w.cgutils.for_range(b, whole, intp=I64) as blocks:
        columns(b.mul(blocks.index, constant(I64, wide)), wide)
    done = b.mul(whole, constant(I64, wide))
    with w.cgutils.for_range(b, b.sub(p["chunks"], done), intp=I64) as rest:
        columns(b.add(done, rest.index), 1)


def _cached(kind: Any) -> tuple[str, Any]:
    return ("f16", I16) if kind.dtype == types.uint16 else ("f32", w.F32)


@intrinsic
def score_tile(
    typing_context: Any, q: Any, index: Any, first: Any, count: Any, k: Any, start: Any, stride: Any,
    keys: Any, chunks: Any,
    scale: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """out.flat[t · out_stride + j] = scale · (row index[first + t] of q) · (key j), for t < count <= QUERIES,
    j < keys.

    q f32 [rows, 16 · chunks], index int64; key j starts at k.flat[start + j · stride], 16 · chunks elements.
    """
    name, element = _cached(k)

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        kinds = signature.args
        p = {
            "q": w.data_pointer(context, builder, kinds[0], a[0], w.F32),
            "index": w.data_pointer(context, builder, kinds[1], a[1], I64), "first": a[2], "count": a[3],
            "k": offset(builder, w.data_pointer(context, builder, kinds[4], a[4], element), a[5]),
            "k_stride": a[6],
            "keys": a[7], "chunks": a[8], "scale": a[9],
            "out": w.data_pointer(context, builder, kinds[10], a[10], w.F32), "out_stride": a[11],
        }  # fmt: skip
        w.by_count(
            builder, p, [1, QUERIES], f"scores_{name}", lambda b, size, named: _scores(b, size, name, named)
        )
        return context.get_dummy_value()

    i = types.intp
    return types.void(q, index, i, i, k, i, i, i, i, types.float32, out, i), generate


@intrinsic
def value_tile(
    typing_context: Any, weights: Any, w_start: Any, w_stride: Any, count: Any, v: Any, start: Any,
    stride: Any, keys: Any,
    chunks: Any, out: Any, out_start: Any, out_stride: Any, fresh: Any,
) -> Any:  # fmt: skip
    """out.flat[out_start + t · out_stride + d] = sum over j of weights.flat[w_start + t · w_stride + j] ·
    (value j)[d], added to what is there unless `fresh`.

    For t < count <= QUERIES, j < keys, d < 16 · chunks; value j starts at v.flat[start + j · stride]. Reads
    weights and writes `out` for QUERIES lines when count is above 1.
    """
    name, element = _cached(v)

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        kinds = signature.args
        p = {
            "weights": offset(builder, w.data_pointer(context, builder, kinds[0], a[0], w.F32), a[1]),
            "w_stride": a[2],
            "count": a[3], "v": offset(builder, w.data_pointer(context, builder, kinds[4], a[4], element),
            a[5]),
            "v_stride": a[6], "keys": a[7], "chunks": a[8],
            "out": offset(builder, w.data_pointer(context, builder, kinds[9], a[9], w.F32), a[10]),
            "out_stride": a[11], "fresh": a[12],
        }  # fmt: skip
        w.by_count(
            builder, p, [1, QUERIES], f"values_{name}", lambda b, size, named: _values(b, size, name, named)
        )
        return context.get_dummy_value()

    i = types.intp
    return types.void(weights, i, i, i, v, i, i, i, i, out, i, i, types.boolean), generate


@intrinsic
def ask_for(typing_context: Any, rows: Any, start: Any, width: Any, count: Any, stride: Any) -> Any:
    """Asks for `count` rows of `width` elements of a cache, contiguous: the first at rows.flat[start], each `stride`
    elements after the one before. So the first are on their way when a tile comes to them."""
    name, element = _cached(rows)

    def generate(context: Any, builder: Any, signature: Any, a: Any) -> Any:
        b, line = builder, 32 if name == "f16" else 16
        first = offset(b, w.data_pointer(context, b, signature.args[0], a[0], element), a[1])
        lines = b.sdiv(b.add(a[2], constant(I64, line - 1)), constant(I64, line))
        with w.cgutils.for_range(b, a[3], intp=I64) as row:
            here = offset(b, first, b.mul(row.index, a[4]))
            with w.cgutils.for_range(b, lines, intp=I64) as loop:
                w.prefetch(b, offset(b, here, b.mul(loop.index, constant(I64, line))))
        return context.get_dummy_value()

    i = types.intp
    return types.void(rows, i, i, i, i), generate
