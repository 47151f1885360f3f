"""Attention of one row: what lies between the projections to queries, keys and values and the one back, in two calls.

Norms, rotation, cache and attention are those of `norms`, `rope`, `half` and `attention`, bit for bit.
"""

from collections.abc import Sequence

import numpy as np

from engine.arrays import F32, I32, Array
from engine.kernels.attention import COST, NO_BIAS, NO_KEYS, NO_SINKS
from engine.kernels.attention_kernel import attend
from engine.kernels.compile import device, kernel
from engine.kernels.half import narrow_into
from engine.kernels.isa import isa
from engine.kernels.norms import norm_lines
from engine.kernels.rope import rotate
from engine.kernels.row_linear import UNNORMED, RowNorm
from engine.kernels.threads import launch


@device
def _turned(x, norm, epsilon, plus, cos, sin, first, interleaved, out):  # type: ignore[no-untyped-def]
    """out [1, heads, D]: row x [1, heads · D], normed by heads or as a whole as the weight is long, then rotated."""
    if len(norm) == 0:
        rotate(x.reshape(out.shape), cos, sin, first, interleaved, out)
        return
    lines = np.empty(x.shape, np.float32)
    wide = len(norm)
    norm_lines(x.reshape(x.size // wide, wide), norm, epsilon, plus, lines.reshape(x.size // wide, wide))
    rotate(lines.reshape(out.shape), cos, sin, first, interleaved, out)


@kernel
def _turn_and_store(  # type: ignore[no-untyped-def]
    q, q_norm, q_epsilon, q_plus, k, k_norm, k_epsilon, k_plus, v, cos, sin, first, interleaved, keys, values, place,
    out,
):  # fmt: skip
    """out [1, H, D]: queries normed and rotated; keys, the same, and values go to row `place` of the cache."""
    _turned(q, q_norm, q_epsilon, q_plus, cos, sin, first, interleaved, out)
    turned = np.empty((1, keys.shape[1], keys.shape[2]), np.float32)
    _turned(k, k_norm, k_epsilon, k_plus, cos, sin, first, interleaved, turned)
    narrow_into(turned.reshape(-1), keys[place].reshape(-1))
    narrow_into(v.reshape(-1), values[place].reshape(-1))


class RowAttention:
    """Heads that attend to a cache of keys and values, for single rows."""

    __slots__ = ("_dim", "_dtypes", "_heads", "_k_norm", "_q_norm", "_scale", "_sinks", "_window")

    def __init__(
        self, heads: int, dim: int, q_norm: RowNorm | None, k_norm: RowNorm | None, scale: float, window: int | None,
        sinks: F32 | None,
    ) -> None:  # fmt: skip
        """heads: of queries, each of `dim` numbers; the norms are taken by heads, or of all heads at once where their
        weight is so long. The rest as in `attention`."""
        self._heads, self._dim, self._scale = heads, dim, np.float32(scale)
        self._q_norm, self._k_norm = q_norm or UNNORMED, k_norm or UNNORMED
        halves = (np.dtype(np.float16),) if isa().half else ()
        self._dtypes = (np.dtype(np.float32), *halves) if dim % 16 == 0 else ()
        self._window, self._sinks = window or 0, NO_SINKS if sinks is None else sinks

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
        turned = np.empty((1, self._heads, self._dim), np.float32)
        _turn_and_store(
            q,
            *self._q_norm,
            k,
            *self._k_norm,
            v,
            *angles,
            first,
            interleaved,
            keys,
            values,
            position - start,
            turned,
        )
        out = np.empty((self._heads, self._dim), np.float32)
        with launch(COST * turned.size * (position + 1)) as count:
            attend(
                turned[0], keys, values, positions, start, self._dim, self._dim, self._scale, self._window,
                self._sinks, NO_KEYS, NO_BIAS, out, count,
            )  # fmt: skip
        return out.reshape(1, -1)
