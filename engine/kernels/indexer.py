"""Which keys a row of sparse attention sees: the best by a light score of their own (DeepSeek-V3.2's indexer).

The score of a key is the sum over the indexer's heads of weight · max(0, scale · q · key), by fma in increasing
order of heads; a dot product is summed in the order of `lanes`. The k best are found by their bits, eleven at a
time, without sorting; among equals the lower index wins, and the choice is given in increasing order. So it
depends on the row and its keys alone.
"""

from typing import Any

import numpy as np
from numba import prange

from engine.arrays import F32, I32, Array
from engine.kernels.atomic import next_task
from engine.kernels.attention_tile import QUERIES, score_tile
from engine.kernels.compile import device, kernel
from engine.kernels.lanes import cache_value
from engine.kernels.matrix import padded_columns
from engine.kernels.scalar import f32_to_bits, fused
from engine.kernels.threads import launch

BLOCK = 256  # keys of a task
SCORES = 1 << 22  # scores held at once, unless a single row has more
BUCKETS = 1 << 11
SHIFTS = (21, 10, 0)  # the 32 bits of a score in three steps


@device
def _rank(score):  # type: ignore[no-untyped-def]
    """A whole number that grows with the score, 0 … 2**32 - 1; the same for both zeros."""
    bits = np.int64(f32_to_bits(score + np.float32(0.0)))
    return (bits if bits >= 0 else bits ^ np.int64(0x7FFFFFFF)) + np.int64(1 << 31)


@kernel
def _best(scores, buckets, chosen):  # type: ignore[no-untyped-def]
    """Puts the numbers of the len(chosen) best scores into `chosen`, in increasing order."""
    above, wanted = np.int64(0), len(chosen)  # ranks >> shift are compared with `above`
    before = np.int64(32)
    for shift in SHIFTS:
        buckets[:] = 0
        for j in range(len(scores)):
            rank = _rank(scores[j])
            if rank >> before == above:
                buckets[(rank >> shift) & (BUCKETS - 1)] += 1
        bucket = BUCKETS - 1
        while buckets[bucket] < wanted:
            wanted -= buckets[bucket]
            bucket -= 1
        above = (above << (before - np.int64(shift))) | np.int64(bucket)
        before = np.int64(shift)
    count = 0
    for j in range(len(scores)):
        rank = _rank(scores[j])
        if rank > above or (rank == above and wanted > 0):
            if rank == above:
                wanted -= 1
            chosen[count] = j
            count += 1


@kernel(parallel=True)
def _choose(q, weights, keys, counts, dim, scale, scores, chosen, threads):  # type: ignore[no-untyped-def]
    rows, heads = weights.shape
    most = chosen.shape[1]
    blocks = (scores.shape[1] + BLOCK - 1) // BLOCK
    chunks = q.shape[1] // 16
    direct = dim % 16 == 0
    counter = np.zeros(2, np.int64)
    later = counter[1:]
    for _ in prange(threads):
        index = np.empty(heads, np.int64)
        part = np.zeros(((heads + QUERIES - 1) // QUERIES * QUERIES, BLOCK), np.float32)
        wide = np.zeros((0 if direct else BLOCK, q.shape[1]), np.float32)
        while True:
            task = next_task(counter)
            if task >= rows * blocks:
                break
            row, first = task // blocks, task % blocks * BLOCK
            some = min(np.int64(counts[row]) - first, BLOCK)
            if some <= 0 or counts[row] <= most:
                continue
            for h in range(heads):
                index[h] = row * heads + h
            if not direct:
                for j in range(some):
                    for i in range(dim):
                        wide[j, i] = cache_value(keys[first + j, i])
            for h in range(0, heads, QUERIES):
                few = min(QUERIES, heads - h)
                if direct:
                    score_tile(q, index, h, few, keys, first * dim, dim, some, chunks, scale, part[h:], BLOCK)
                else:
                    score_tile(q, index, h, few, wide, 0, q.shape[1], some, chunks, scale, part[h:], BLOCK)
            line = scores[row, first : first + some]
            line[:] = np.float32(0)
            for h in range(heads):
                weight, seen = weights[row, h], part[h]
                for j in range(some):
                    line[j] = fused(weight, max(seen[j], np.float32(0)), line[j])
    for _ in prange(threads):
        buckets = np.empty(BUCKETS, np.int64)
        while True:
            row = next_task(later)
            if row >= rows:
                break
            if counts[row] > most:
                _best(scores[row, : counts[row]], buckets, chosen[row])
                continue
            for j in range(most):
                chosen[row, j] = j if j < counts[row] else -1


def choose_keys(q: F32, weights: F32, keys: Array, counts: I32, most: int, *, scale: float) -> I32:
    """The numbers of the `most` best keys of each row, in increasing order: int32 [N, min(most, largest count)].

    q f32 [N, H, D]; weights f32 [N, H]; keys [capacity, D], f16 or f32, contiguous; row n chooses among the
    first counts[n] of them, and takes all when there are no more than `most`: -1 fills the rest of its line.
    ValueError for wrong shapes.
    """
    rows, heads, dim = q.shape
    largest = int(counts.max(initial=0))
    fits = weights.shape == (rows, heads) and counts.shape == (rows,) and keys.shape[1:] == (dim,)
    if not fits or largest > len(keys):
        raise ValueError(
            f"q {list(q.shape)}, weights {list(weights.shape)}, counts {list(counts.shape)} up to {largest} "
            f"and keys {list(keys.shape)} do not fit"
        )
    chosen = np.empty((rows, min(most, largest)), np.int32)
    stored: Any = keys.view(np.uint16) if keys.dtype == np.float16 else keys
    asked = padded_columns(np.ascontiguousarray(q, np.float32).reshape(rows * heads, dim))
    weights, counts = np.ascontiguousarray(weights, np.float32), np.ascontiguousarray(counts, np.int32)
    width = largest if largest > most else 0  # where all keys are taken, nothing needs a score
    at_once = max(1, SCORES // max(1, width))
    scores = np.empty((min(rows, at_once), width), np.float32)
    with launch(rows * heads * dim * width) as count:
        for first in range(0, rows, at_once):
            some = slice(first, min(first + at_once, rows))
            _choose(
                asked[some.start * heads : some.stop * heads], weights[some], stored, counts[some], dim,
                np.float32(scale), scores[: some.stop - some.start], chosen[some], count,
            )  # fmt: skip
    return chosen
