"""The gated delta rule: attention that keeps one matrix S [Dk, Dv] a head instead of all keys and values.

Each token, in this order (decay g, write strength β, key k, value v, question q):

    S ← g ⊙ S        fades what was kept: one factor a head, or one for each of its Dk channels
    m = Sᵀ k         what is remembered under k
    S ← S + k (β (v − m))ᵀ
    out = Sᵀ q

(Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464; a factor a channel: Kimi Linear, arXiv 2510.26692.) It is
computed token after token, never in chunks, so the bits do not depend on where a prompt was cut. The columns
of S know nothing of each other: a task is 32 columns of one head, whose part of S stays in the nearest cache
for all tokens of a call; so a state is kept as [H, tiles, Dk, 32], a tile without gaps, filled up with zeros.
Sums over Dk are by fma, in increasing order.
"""

from typing import Any

import numpy as np
from numba import prange, types

from engine.arrays import F32, aligned
from engine.kernels import ir as w
from engine.kernels.atomic import next_task
from engine.kernels.compile import intrinsic, kernel
from engine.kernels.ir import I64, constant, load, offset, splat, store, vector
from engine.kernels.scalar import exp, sigmoid, softplus
from engine.kernels.threads import gate, threads

FLOATS = vector(w.F32, 16)
COLUMNS = 32  # of S a task


@intrinsic
def _step(
    typing_context: Any, work: Any, rows: Any, k: Any, k_at: Any, q: Any, q_at: Any, decay: Any, decay_at: Any,
    decay_step: Any, beta: Any, line: Any,
) -> Any:  # fmt: skip
    """One token for the columns in `work` f32 [rows, 32]; `line` [32] holds v on entry and the output on return.

    The key is k.flat[k_at …], the question q.flat[q_at …], the factors decay.flat[decay_at + i · decay_step].
    """

    def generate(context: Any, b: Any, signature: Any, a: Any) -> Any:
        def pointer(index: int) -> Any:
            return w.data_pointer(context, b, signature.args[index], a[index], w.F32)

        work, line = pointer(0), pointer(10)
        key, question, factors = (offset(b, pointer(i), a[i + 1]) for i in (2, 4, 6))
        parts = [constant(I64, at) for at in range(0, COLUMNS, 16)]
        zero = constant(FLOATS, 0.0)
        sums = [w.variable(b, zero) for _ in parts]
        for place in sums:
            b.store(zero, place)
        with w.cgutils.for_range(b, a[1], intp=I64) as loop:
            row = offset(b, work, b.mul(loop.index, constant(I64, COLUMNS)))
            factor = splat(b, b.load(offset(b, factors, b.mul(loop.index, a[8]))), 16)
            weight = splat(b, b.load(offset(b, key, loop.index)), 16)
            for part, place in zip(parts, sums, strict=True):
                kept = b.fmul(load(b, offset(b, row, part), FLOATS, 4), factor)
                store(b, kept, offset(b, row, part), 4)
                b.store(w.fma(b, kept, weight, b.load(place)), place)
        strength = splat(b, a[9], 16)
        written = []
        for part, place in zip(parts, sums, strict=True):
            missing = b.fsub(load(b, offset(b, line, part), FLOATS, 4), b.load(place))
            written.append(b.fmul(missing, strength))
            b.store(zero, place)
        with w.cgutils.for_range(b, a[1], intp=I64) as loop:
            row = offset(b, work, b.mul(loop.index, constant(I64, COLUMNS)))
            weight = splat(b, b.load(offset(b, key, loop.index)), 16)
            asked = splat(b, b.load(offset(b, question, loop.index)), 16)
            for part, new, place in zip(parts, written, sums, strict=True):
                kept = w.fma(b, weight, new, load(b, offset(b, row, part), FLOATS, 4))
                store(b, kept, offset(b, row, part), 4)
                b.store(w.fma(b, kept, asked, b.load(place)), place)
        for part, place in zip(parts, sums, strict=True):
            store(b, b.load(place), offset(b, line, part), 4)
        return context.get_dummy_value()

    index = types.intp
    kinds = (work, index, k, index, q, index, decay, index, index, types.float32, line)
    return types.void(*kinds), generate


@kernel(parallel=True)
def _delta(q, k, v, decay, beta, before, after, out, threads):  # type: ignore[no-untyped-def]
    count, heads, width = v.shape
    depth, tiles = k.shape[2], before.shape[1]
    shared = heads // k.shape[1]
    step = 1 if decay.shape[2] > 1 else 0
    counter = np.zeros(1, np.int64)
    for _ in prange(threads):
        line = np.zeros(COLUMNS, np.float32)
        while True:
            task = next_task(counter)
            if task >= heads * tiles:
                break
            head, tile = task // tiles, task % tiles
            some = min(COLUMNS, width - tile * COLUMNS)
            work, old = after[head, tile], before[head, tile]
            for i in range(depth):
                for j in range(COLUMNS):
                    work[i, j] = old[i, j]
            for n in range(count):
                for j in range(some):
                    line[j] = v[n, head, tile * COLUMNS + j]
                for j in range(some, COLUMNS):
                    line[j] = np.float32(0)
                at = (n * k.shape[1] + head // shared) * depth
                fade = (n * heads + head) * decay.shape[2]
                _step(work, depth, k, at, q, at, decay, fade, step, beta[n, head], line)
                for j in range(some):
                    out[n, head, tile * COLUMNS + j] = line[j]


def delta_state(heads: int, depth: int, width: int) -> tuple[int, int, int, int]:
    """The shape of what `delta_rule` keeps of a sequence, in f32; all zeros is the state of no tokens."""
    return heads, -(-width // COLUMNS), depth, COLUMNS


def delta_rule(q: F32, k: F32, v: F32, decay: F32, beta: F32, before: F32, after: F32) -> F32:
    """Feeds tokens in order to the states of all heads: f32 [N, H, Dv], a token's answer from what includes it.

    q, k f32 [N, Hk, Dk], normed and scaled as the family does it; head h uses key head h // (H / Hk). v [N, H,
    Dv]. decay [N, H, 1] or [N, H, Dk]: the factors themselves, 0 … 1 (see `forget`). beta [N, H]. `before` of
    shape `delta_state(H, Dk, Dv)` is read, `after` of the same shape is written. A row's bits depend on the
    tokens up to it alone. ValueError for wrong shapes.
    """
    count, heads, width = v.shape
    depth = k.shape[2]
    fits = q.shape == k.shape and len(k) == count and beta.shape == (count, heads)
    fits = fits and heads % k.shape[1] == 0 and decay.shape in ((count, heads, 1), (count, heads, depth))
    if not fits or before.shape != delta_state(heads, depth, width) or after.shape != before.shape:
        raise ValueError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, decay {list(decay.shape)}, "
            f"beta {list(beta.shape)} and states {list(before.shape)}, {list(after.shape)} do not fit"
        )
    out = aligned(v.shape, np.float32)
    q, k, v, decay, beta = (np.ascontiguousarray(x, np.float32) for x in (q, k, v, decay, beta))
    with gate:
        _delta(q, k, v, decay, beta, before, after, out, threads())
    return out


@kernel(parallel=True)
def _forget(x, bias, rate, bounded, bound, out, threads):  # type: ignore[no-untyped-def]
    count, heads, depth = x.shape
    lines = count * heads
    for part in prange(threads):
        for line in range(part * lines // threads, (part + 1) * lines // threads):
            n, h = line // heads, line % heads
            if bounded:
                for i in range(depth):
                    out[n, h, i] = exp(bound * sigmoid(rate[h] * (x[n, h, i] + bias[h, i])))
            else:
                for i in range(depth):
                    out[n, h, i] = exp(-(rate[h] * softplus(x[n, h, i] + bias[h, i])))


def forget(x: F32, bias: F32, rate: F32, bound: float | None = None) -> F32:
    """Factors of decay from a gate: exp(−rate · softplus(x + bias)), or with a (negative) `bound`
    exp(bound · sigmoid(rate · (x + bias))), which never falls below exp(bound).

    x f32 [N, H, D] with D = 1 for one factor a head; bias [H, D]; rate [H], the exponential of `A_log`. A new
    array of the shape of x.
    """
    out = aligned(x.shape, np.float32)
    x, bias = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(bias, np.float32)
    if bias.shape != x.shape[1:] or rate.shape != x.shape[1:2]:
        raise ValueError(f"gates {list(x.shape)} do not fit bias {list(bias.shape)} and {len(rate)} rates")
    with gate:
        _forget(x, bias, rate, bound is not None, np.float32(bound or 0.0), out, threads())
    return out
