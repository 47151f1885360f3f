"""Attention of one row: what lies between the projections to queries, keys and values and the one back, in two calls.

Norms, rotation, cache and attention are those of `norms`, `rope`, `half` and `attention`, bit for bit.
"""

from collections.abc import Sequence

import numpy as np

from engine.arrays import F32, I32, Array
from engine.kernels.atomic import mark_done, next_task, wait_for
from engine.kernels.attention import COST, NO_BIAS, NO_KEYS, NO_SINKS
from engine.kernels.attention_kernel import BLOCK, RUN, attend, block_of, merge_blocks, ranges
from engine.kernels.compile import device, kernel
from engine.kernels.half import narrow_into
from engine.kernels.isa import isa
from engine.kernels.norms import norm_lines
from engine.kernels.rope import rotate
from engine.kernels.row_linear import UNNORMED, RowNorm
from engine.kernels.threads import launch

ATTENTION_COUNTERS = 32  # four, each alone in its cache line
PIECES, PIECES_DONE, MERGES, MERGES_DONE = range(0, ATTENTION_COUNTERS, 8)


@device
def turn_row(x, norm, epsilon, plus, cos, sin, first, interleaved, out):  # type: ignore[no-untyped-def]
    """out [1, heads, D]: row x [1, heads · D], normed by heads or as a whole as the weight is long, then rotated."""
    if len(norm) == 0:
        rotate(x.reshape(out.shape), cos, sin, first, interleaved, out)
        return
    lines = np.empty(x.shape, np.float32)
    wide = len(norm)
    norm_lines(x.reshape(x.size // wide, wide), norm, epsilon, plus, lines.reshape(x.size // wide, wide))
    rotate(lines.reshape(out.shape), cos, sin, first, interleaved, out)


@device
def attend_share(  # type: ignore[no-untyped-def]
    q, k, v, keys, values, positions, start, window, scale, sinks, tops, sums, parts, out, tally, threads
):  # fmt: skip
    """What each thread does of the attention of one row: out f32 [H, D].

    q f32 [H, D], k and v [Hkv, D]: the row's own, rotated; whoever has a task with its block stores them in the cache.
    tops, sums [blocks, lines of all heads] and parts [blocks, lines of all heads, D] are shared, as is `tally` int64
    [ATTENTION_COUNTERS], zeros. Returns when the whole row is done.
    """
    heads, dim, kv_heads = q.shape[0], q.shape[1], keys.shape[1]
    shared, spans = heads // kv_heads, np.empty((1, 2), np.int64)
    lowest, highest = ranges(positions, window, NO_KEYS, spans)
    blocks, lines = highest - lowest, tops.shape[1] // kv_heads
    group = min(kv_heads, max(1, RUN // dim))
    while group > 1 and (kv_heads + group - 1) // group * blocks < 4 * threads:
        group = (group + 1) // 2  # enough tasks for all
    head_groups = (kv_heads + group - 1) // group
    tasks = head_groups * blocks
    index, tokens = np.zeros(group * lines, np.int64), np.zeros(shared, np.int64)
    scores, nothing = np.zeros((group * lines, BLOCK), np.float32), np.empty((0, dim), np.float32)
    while True:
        task = next_task(tally[PIECES:])
        if task >= tasks:
            break
        piece, head = task // head_groups, task % head_groups * group
        some = min(group, kv_heads - head)
        if lowest + piece == positions[0] // BLOCK:
            place = positions[0] - start
            narrow_into(k[head : head + some].reshape(-1), keys[place, head : head + some].reshape(-1))
            narrow_into(v[head : head + some].reshape(-1), values[place, head : head + some].reshape(-1))
        for h in range(some):
            for t in range(shared):
                index[h * lines + t] = (head + h) * shared + t
        first, last = head * lines, (head + some) * lines
        block_of(
            q, keys, values, index, tokens, shared, some, lines, lowest + piece, head, start, dim, dim, scale, spans,
            positions, NO_KEYS, NO_BIAS, True, scores, nothing, nothing, tops[piece, first:last],
            sums[piece, first:last], parts[piece, first:last],
        )  # fmt: skip
        mark_done(tally, PIECES_DONE, 1)
    while True:
        head = next_task(tally[MERGES:])
        if head >= kv_heads:
            break
        wait_for(tally, PIECES_DONE, tasks)
        for t in range(shared):
            row = head * shared + t
            merge_blocks(tops[:blocks], sums[:blocks], parts[:blocks], head * lines + t, sinks, row, out[row])
        mark_done(tally, MERGES_DONE, 1)
    wait_for(tally, MERGES_DONE, kv_heads)


@kernel
def _turn_and_store(  # type: ignore[no-untyped-def]
    q, q_norm, q_epsilon, q_plus, k, k_norm, k_epsilon, k_plus, v, cos, sin, first, interleaved, keys, values, place,
    out,
):  # fmt: skip
    """out [1, H, D]: queries normed and rotated; keys, the same, and values go to row `place` of the cache."""
    turn_row(q, q_norm, q_epsilon, q_plus, cos, sin, first, interleaved, out)
    turned = np.empty((1, keys.shape[1], keys.shape[2]), np.float32)
    turn_row(k, k_norm, k_epsilon, k_plus, cos, sin, first, interleaved, turned)
    narrow_into(turned.reshape(-1), keys[place].reshape(-1))
    narrow_into(v.reshape(-1), values[place].reshape(-1))


class RowAttention:
    """Heads that attend to a cache of keys and values, for single rows."""

    __slots__ = ("_dtypes", "dim", "heads", "k_norm", "q_norm", "scale", "sinks", "window")

    def __init__(
        self, heads: int, dim: int, q_norm: RowNorm | None, k_norm: RowNorm | None, scale: float, window: int | None,
        sinks: F32 | None,
    ) -> None:  # fmt: skip
        """heads: of queries, each of `dim` numbers; the norms are taken by heads, or of all heads at once where their
        weight is so long. The rest as in `attention`."""
        self.heads, self.dim, self.scale = heads, dim, np.float32(scale)
        self.q_norm, self.k_norm = q_norm or UNNORMED, k_norm or UNNORMED
        halves = (np.dtype(np.float16),) if isa().half else ()
        self._dtypes = (np.dtype(np.float32), *halves) if dim % 16 == 0 else ()
        self.window, self.sinks = window or 0, NO_SINKS if sinks is None else sinks

    def serves(self, dtype: np.dtype[np.generic]) -> bool:
        """Whether these heads can be done so with a cache of this type."""
        return dtype in self._dtypes

    def __call__(
        self, q: F32, k: F32, v: F32, angles: tuple[F32, F32], first: int, interleaved: bool, cache: Sequence[Array],
        start: int, positions: I32,
    ) -> F32:  # fmt: skip
        """q f32 [1, H · D], k and v [1, Hkv · D] -> f32 [1, H · D].

        angles, first, interleaved: see `rope`. cache: keys and values, each [capacity, Hkv, D], f32 or the bits of f16;
        their first row is that of position `start`. positions int32 [1], within the cache.
        """
        keys, values = cache
        position = int(positions[0])
        turned = np.empty((1, self.heads, self.dim), np.float32)
        _turn_and_store(
            q,
            *self.q_norm,
            k,
            *self.k_norm,
            v,
            *angles,
            first,
            interleaved,
            keys,
            values,
            position - start,
            turned,
        )
        out = np.empty((self.heads, self.dim), np.float32)
        with launch(COST * turned.size * (position + 1)) as count:
            attend(
                turned[0], keys, values, positions, start, self.dim, self.dim, self.scale, self.window,
                self.sinks, NO_KEYS, NO_BIAS, out, count,
            )  # fmt: skip
        return out.reshape(1, -1)
