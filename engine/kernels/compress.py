"""Compressed attention: a window of tokens becomes one entry, and a row sees the last tokens and chosen entries.

An entry's dimension d is the mean of the values v[t, d] of its window's tokens, weighted by the softmax over t of
gate[t, d] + bias[t, d]. With overlap each token has two sets of values and gates, one for the entry of the next
window and one for that of its own: an entry is then pooled over twice as many tokens (DeepSeek-V4, section 2.3).
Sums go over the tokens in increasing order, by fma.
"""

import numpy as np
from numba import prange

from engine.arrays import F32, I32, Array, aligned
from engine.kernels.compile import kernel
from engine.kernels.scalar import exp, fused
from engine.kernels.threads import launch

NO_CHOICE = np.empty((0, 0), np.int32)


@kernel(parallel=True)
def _pool(values, gates, bias, start, first, overlap, out, threads):  # type: ignore[no-untyped-def]
    ratio, (count, dim) = len(bias), out.shape
    for part in prange(threads):
        top, total = np.empty(dim, np.float32), np.empty(dim, np.float32)
        for e in range(part * count // threads, (part + 1) * count // threads):
            entry = first + e
            earliest = ratio if not overlap or entry == 0 else 0
            top[:] = np.float32(-np.inf)
            for slot in range(earliest, 2 * ratio):
                row, columns = (entry - 1) * ratio + slot - start, dim if overlap and slot >= ratio else 0
                line, shift = gates[row, columns : columns + dim], bias[slot % ratio, columns : columns + dim]
                for d in range(dim):
                    top[d] = max(top[d], line[d] + shift[d])
            result = out[e]
            result[:] = np.float32(0)
            total[:] = np.float32(0)
            for slot in range(earliest, 2 * ratio):
                row, columns = (entry - 1) * ratio + slot - start, dim if overlap and slot >= ratio else 0
                line, shift = gates[row, columns : columns + dim], bias[slot % ratio, columns : columns + dim]
                value = values[row, columns : columns + dim]
                for d in range(dim):
                    weight = exp((line[d] + shift[d]) - top[d])
                    total[d] += weight
                    result[d] = fused(weight, value[d], result[d])
            for d in range(dim):
                result[d] /= total[d]


def pool_windows(
    values: Array, gates: Array, bias: F32, start: int, first: int, count: int, *, overlap: bool = False
) -> F32:
    """Entries first … first + count, f32 [count, D].

    values and gates f32 [capacity, W], row r of position start + r; bias f32 [ratio, W]. Entry e is made of
    positions e · ratio … (e + 1) · ratio, W = D; with `overlap` also of the `ratio` positions before, W = 2 D, of
    which the first half serves the next window's entry and the second that of a token's own. ValueError when
    positions are not there.
    """
    ratio, width = bias.shape
    earliest = (first - (1 if overlap and first > 0 else 0)) * ratio
    fits = values.shape == gates.shape and values.shape[1] == width and width % (2 if overlap else 1) == 0
    if not fits or earliest < start or (first + count) * ratio > start + len(values):
        raise ValueError(
            f"entries {first} … {first + count} of {ratio} positions cannot be pooled from values "
            f"{list(values.shape)} and gates {list(gates.shape)} that start at {start}, bias {list(bias.shape)}"
        )
    out = aligned((count, width // 2 if overlap else width), np.float32)
    with launch(32 * count * bias.size) as threads:  # an exponential costs that many multiplications, about
        _pool(values, gates, bias, start, first, overlap, out, threads)
    return out


@kernel
def _join(positions, window, start, front, chosen, counts, out):  # type: ignore[no-untyped-def]
    for n in range(len(positions)):
        at = 0
        for position in range(max(0, positions[n] + 1 - window), positions[n] + 1):
            out[n, at] = position - start
            at += 1
        for j in range(chosen.shape[1] if len(chosen) else counts[n]):
            entry = chosen[n, j] if len(chosen) else j
            if entry < 0:
                break
            out[n, at] = front + entry
            at += 1
        for j in range(at, out.shape[1]):
            out[n, j] = -1


def join_places(
    positions: I32, window: int, start: int, front: int, counts: I32, chosen: I32 | None = None
) -> I32:
    """Which rows of a joint cache each token sees, as `keys` of `attention`: int32 [N, most], -1 from the end on.

    First the last `window` positions up to its own, position p in row p - start; then entries, entry e in row
    front + e: those in `chosen` int32 [N, k] (-1 from the end on), or else the first counts[n].
    """
    entries = int(counts.max(initial=0)) if chosen is None else chosen.shape[1]
    recent = min(window, int(positions.max(initial=0)) + 1)
    out = np.empty((len(positions), recent + entries), np.int32)
    _join(positions, window, start, front, NO_CHOICE if chosen is None else chosen, counts, out)
    return out


@kernel
def _expand(pools, positions, ratio, out):  # type: ignore[no-untyped-def]
    for n in range(len(pools)):
        at = 0
        for j in range(pools.shape[1]):
            if pools[n, j] < 0:
                break
            for t in range(ratio):
                out[n, at] = pools[n, j] * ratio + t
                at += 1
        for position in range((positions[n] + 1) // ratio * ratio, positions[n] + 1):
            out[n, at] = position
            at += 1
        for j in range(at, out.shape[1]):
            out[n, j] = -1


def expand_pools(pools: I32, positions: I32, ratio: int) -> I32:
    """The positions in chosen pools of `ratio`, and those of the pool that a token's own leaves unfinished.

    pools int32 [N, k], increasing, -1 from the end on; positions int32 [N] -> int32 [N, k · ratio + ratio - 1].
    """
    out = np.empty((len(pools), pools.shape[1] * ratio + ratio - 1), np.int32)
    _expand(pools, positions, ratio, out)
    return out
