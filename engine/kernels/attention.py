"""Attention of some rows over a cache of keys and values, without ever holding all scores.

Keys are taken in blocks of 128 by absolute number, whatever the chunks of a prefill were: a row's bits depend only on the
row, its keys and its options. Per block: scores (dot products in the order of `lanes`, scaled, bias added), their
maximum, exponentials and their sum in the order of `lanes`, and values added by fma in increasing order; a block's sums
are then merged into the running ones by their maxima.
"""

import numpy as np

from engine.arrays import F32, I32, Array, aligned
from engine.kernels.compile import kernel
from engine.kernels.lanes import cache_value, lane_dot, lane_sum
from engine.kernels.scalar import exp, fused
from engine.kernels.threads import gate, threads

BLOCK = 128

NO_BIAS = np.empty((0, 0, 0), np.float32)
NO_SINKS = np.empty(0, np.float32)
NO_KEYS = np.empty((0, 0), np.int32)


@kernel
def _attention(q, k, v, positions, start, width, scale, window, sinks, keys, bias, out, threads):  # type: ignore[no-untyped-def]
    heads, dim, shared = q.shape[1], q.shape[2], q.shape[1] // k.shape[1]
    chosen = keys.shape[0] > 0
    wide_k = np.empty(dim, np.float32)
    scores = np.empty(BLOCK, np.float32)
    part = np.empty(width, np.float32)
    for n in range(q.shape[0]):
        position = positions[n]
        first, last = 0, position + 1
        if chosen:
            last = 0
            while last < keys.shape[1] and keys[n, last] >= 0:
                last += 1
        elif window > 0:
            first = max(0, position + 1 - window)
        for h in range(heads):
            top, total = np.float32(-np.inf), np.float32(0)
            out[n, h, :] = np.float32(0)
            for block in range(first // BLOCK, (last + BLOCK - 1) // BLOCK):
                low, high = max(first, block * BLOCK), min(last, block * BLOCK + BLOCK)
                best = np.float32(-np.inf)
                for j in range(low, high):
                    key = keys[n, j] if chosen else j
                    for i in range(dim):
                        wide_k[i] = cache_value(k[key - start, h // shared, i])
                    score = lane_dot(q, (n * heads + h) * dim, wide_k, 0, dim) * scale
                    if bias.shape[2] > position - key:
                        score += bias[n, h, position - key]
                    scores[j - block * BLOCK] = score
                    best = max(best, score)
                new = max(top, best)
                for j in range(BLOCK):
                    inside = low <= j + block * BLOCK < high
                    scores[j] = exp(scores[j] - best) if inside else np.float32(0)
                part[:] = np.float32(0)
                for j in range(low, high):
                    key = keys[n, j] if chosen else j
                    for i in range(width):
                        part[i] = fused(scores[j - block * BLOCK], cache_value(v[key - start, h // shared, i]), part[i])
                old_factor, new_factor = exp(top - new), exp(best - new)
                total = total * old_factor + lane_sum(scores, 0, BLOCK) * new_factor
                for i in range(width):
                    out[n, h, i] = out[n, h, i] * old_factor + part[i] * new_factor
                top = new
            if len(sinks):
                new = max(top, sinks[h])
                factor = exp(top - new)
                total = total * factor + exp(sinks[h] - new)
                for i in range(width):
                    out[n, h, i] = (out[n, h, i] * factor) / total
            else:
                for i in range(width):
                    out[n, h, i] /= total


def attention(
    q: F32, k: Array, v: Array, positions: I32, *, scale: float, start: int = 0, value_dim: int | None = None,
    window: int | None = None, sinks: F32 | None = None, keys: I32 | None = None, bias: F32 | None = None,
) -> F32:  # fmt: skip
    """softmax(q · k · scale + bias) · v for each row and head: f32 [N, H, value_dim].

    q f32 [N, H, D]; k [capacity, Hkv, D] and v [capacity, Hkv, Dv], both f16 or both f32, contiguous: row r holds position
    start + r. H is a multiple of Hkv. `value_dim`: only that many leading dimensions of v (pass k as v for latents).
    positions int32 [N]: a row sees the keys at positions <= its own, and with `window` only the last `window` of them.
    sinks f32 [H]: one more score a head, whose value is zero. keys int32 [N, m]: the row sees exactly these positions
    (in this order, -1 from the end on); positions and window then count only for the bias. bias f32 [N, H, extent] is
    added to the score of the key `distance` = position - key back where distance < extent. ValueError for wrong shapes.
    """
    width = v.shape[2] if value_dim is None else value_dim
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or k.dtype != v.dtype or q.shape[2] != k.shape[2]:
        raise ValueError(f"q {list(q.shape)}, k {k.dtype} {list(k.shape)} and v {v.dtype} {list(v.shape)} do not fit")
    if q.shape[1] % k.shape[1] or v.shape[1] != k.shape[1] or width > v.shape[2] or len(positions) != len(q):
        raise ValueError(f"{q.shape[1]} heads, {k.shape[1]} key and {v.shape[1]} value heads, width {width} do not fit")
    out = aligned((len(q), q.shape[1], width), np.float32)
    if len(q) == 0:
        return out
    if keys is None and (positions.min() < start or positions.max() >= start + len(k)):
        raise ValueError(f"positions must lie within the cache, {start} … {start + len(k) - 1}")
    if k.dtype == np.float16:
        k, v = k.view(np.uint16), v.view(np.uint16)
    with gate:
        _attention(
            np.ascontiguousarray(q, np.float32), k, v, np.ascontiguousarray(positions, np.int32), start, width,
            np.float32(scale), 0 if window is None else window, NO_SINKS if sinks is None else sinks,
            NO_KEYS if keys is None else keys, NO_BIAS if bias is None else bias, out, threads(),
        )  # fmt: skip
    return out
