"""Attention of some rows over a cache of keys and values, without ever holding all scores.

Keys are taken in blocks of 128 by absolute number, whatever the chunks of a prefill were: a row's bits depend
only on the row, its keys and its options. Per block: scores (dot products in the order of `lanes`, scaled,
bias added), their maximum, exponentials and their sum in the order of `lanes`, and values added by fma in
increasing order; a block's sums are then merged into the running ones by their maxima.
"""

import numpy as np

from engine.arrays import F32, I32, Array, aligned
from engine.kernels.attention_kernel import attend
from engine.kernels.attention_sequences import attend_sequences, write_rows
from engine.kernels.isa import isa
from engine.kernels.matrix import padded_columns
from engine.kernels.threads import SMALL, launch

COST = 16  # multiplications of a matrix that take as long as one of a cache
NO_BIAS = np.empty((0, 0, 0), np.float32)
NO_SINKS = np.empty(0, np.float32)
NO_KEYS = np.empty((0, 0), np.int32)


def attention(
    q: F32, k: Array, v: Array, positions: I32, *, scale: float, start: int = 0, value_dim: int | None = None,
    window: int | None = None, sinks: F32 | None = None, keys: I32 | None = None, bias: F32 | None = None,
) -> F32:  # fmt: skip
    """softmax(q · k · scale + bias) · v for each row and head: f32 [N, H, value_dim].

    q f32 [N, H, D]; k [capacity, Hkv, D] and v [capacity, Hkv, Dv], both f16 or both f32, contiguous: row r
    holds position start + r. H is a multiple of Hkv. `value_dim`: only that many leading dimensions of v
    (pass k as v for latents). positions int32 [N]: a row sees the keys at positions <= its own, and with
    `window` only the last `window` of them. sinks f32 [H]: one more score a head, whose value is zero. keys
    int32 [N, m]: the row sees exactly these positions (in this order, -1 from the end on); positions and
    window then count only for the bias. bias f32 [N, H, extent] is added to the score of the key `distance` =
    position - key back where distance < extent. ValueError for wrong shapes.
    """
    width = v.shape[2] if value_dim is None else value_dim
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or k.dtype != v.dtype or q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q {list(q.shape)}, k {k.dtype} {list(k.shape)} and v {v.dtype} {list(v.shape)} do not fit"
        )
    if q.shape[1] % k.shape[1] or v.shape[1] != k.shape[1] or width > v.shape[2] or len(positions) != len(q):
        raise ValueError(
            f"{q.shape[1]} heads, {k.shape[1]} key and {v.shape[1]} value heads, width {width} do not fit"
        )
    out = aligned((len(q), q.shape[1], width), np.float32)
    if len(q) == 0:
        return out
    if keys is None and (positions.min() < start or positions.max() >= start + len(k)):
        raise ValueError(f"positions must lie within the cache, {start} … {start + len(k) - 1}")
    if k.dtype == np.float16:
        k, v = k.view(np.uint16), v.view(np.uint16)
    rows = padded_columns(np.asarray(q, np.float32).reshape(-1, q.shape[2]))
    work = COST * q.size * (keys.shape[1] if keys is not None else int(positions.max()) + 1 - start)
    with launch(work) as count:
        attend(
            rows, k, v, np.ascontiguousarray(positions, np.int32), start, q.shape[2], width,
            np.float32(scale),
            0 if window is None else window, NO_SINKS if sinks is None else sinks,
            NO_KEYS if keys is None else keys,
            NO_BIAS if bias is None else bias, out.reshape(-1, width), count,
        )  # fmt: skip
    return out


_LIKE = {np.dtype(np.float16): np.empty(0, np.uint16), np.dtype(np.float32): np.empty(0, np.float32)}


def takes_sequences(dtype: np.dtype[np.generic], sequences: int, elements: int) -> bool:
    """Whether `sequence_attention` serves: several sequences, or one of little work (elements of q times keys)."""
    return (isa().half or dtype == np.float32) and (sequences > 1 or elements < SMALL)


def sequence_attention(
    q: F32, k: F32, v: F32, table: Array, dtype: np.dtype[np.generic], positions: I32, furthest: int, *,
    scale: float, window: int | None = None, sinks: F32 | None = None, bias: F32 | None = None,
) -> F32:  # fmt: skip
    """Writes the rows' keys and values to their sequences' caches and attends, in one launch: f32 [N, H, Dv].

    q f32 [N, H, D], k [N, Hkv, D], v [N, Hkv, Dv]. table int64 [S, 6]: for each sequence its first row, how many
    rows it has, the addresses of its keys and its values (contiguous, of `dtype`, f16 or f32), how many rows they
    have, and the position of the first of these. `furthest`: the largest of `positions`, which the caller sees to
    lie within the caches. The rest as in `attention`, whose bits these are.
    """
    out = aligned((len(q), q.shape[1], v.shape[2]), np.float32)
    like = _LIKE[dtype]
    write_rows(table, like, positions, np.ascontiguousarray(k), np.ascontiguousarray(v))
    rows = padded_columns(q.reshape(-1, q.shape[2]))
    with launch(COST * q.size * (furthest + 1)) as count:
        attend_sequences(
            rows, table, like, positions, k.shape[1], q.shape[2], v.shape[2], np.float32(scale),
            0 if window is None else window, NO_SINKS if sinks is None else sinks,
            NO_BIAS if bias is None else bias, out.reshape(-1, v.shape[2]), count,
        )  # fmt: skip
    return out
