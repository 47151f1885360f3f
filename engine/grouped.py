"""Attention whose query heads share heads of keys and values, as most families have it between their projections.

Heads may be normed (each by itself, or all at once), are turned by their positions, and attend to their sequence's
cache, all of it or a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue
from engine.decoder import Block
from engine.kernels import RowAttention, RowLayer
from engine.layers import Linear, Norm, Stack, attend
from engine.models import Batch
from engine.rotary import Rotary


@dataclass(frozen=True, slots=True, eq=False)
class GroupedAttention:
    """`heads` of queries and `kv_heads` of keys and values, `dim` numbers each.

    The weight of a norm is as long as a head, or as all heads together. `window` and `sinks` as in
    `kernels.attention`.
    """

    heads: int
    kv_heads: int
    dim: int
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    window: int | None = None
    sinks: F32 | None = None
    alone: RowAttention = field(init=False, repr=False)
    """What a single row is done with, where that serves."""

    def __post_init__(self) -> None:
        q_norm, k_norm = (None if norm is None else norm.alone for norm in (self.q_norm, self.k_norm))
        alone = RowAttention(self.heads, self.dim, q_norm, k_norm, self.dim**-0.5, self.window, self.sinks)
        object.__setattr__(self, "alone", alone)

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        """The cache of this layer for one sequence."""
        width = (self.kv_heads, self.dim)
        return KeyValue([width, width], dtype, self.window)

    def __call__(
        self,
        qkv: Sequence[F32],
        batch: Batch,
        parts: Sequence[KeyValue],
        rotary: Rotary,
        angles: tuple[F32, F32],
    ) -> F32:
        """Queries [N, H · D], keys and values [N, Hkv · D] -> [N, H · D]. `parts`: the layer's cache in each of the
        batch's states; angles: `rotary.angles` of the rows."""
        q, k, v = qkv
        if len(batch) == 1 and self.alone.serves(parts[0].dtype):
            cache = parts[0]
            return self.alone(
                q, k, v, angles, rotary.first, rotary.interleaved, cache.bits, cache.start, batch.positions
            )
        q = rotary.turn(self._by_head(q, self.q_norm), angles)
        k = rotary.turn(self._by_head(k, self.k_norm), angles)
        v = v.reshape(len(batch), self.kv_heads, self.dim)
        return attend(batch, parts, q, k, v, scale=self.dim**-0.5, window=self.window, sinks=self.sinks)

    def _by_head(self, x: F32, norm: Norm | None) -> F32:
        """Rows [N, heads · D], normed -> [N, heads, D]."""
        if norm is not None:
            x = norm(x.reshape(len(x), -1, len(norm.weight)))
        return x.reshape(len(x), -1, self.dim)


class GroupedBlock(Block):
    """A layer with one stack of projections, attention, and one matrix back; a family sets these."""

    attention_norm: Norm
    qkv: Stack
    attention: GroupedAttention
    output: Linear

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        return self.attention.new_part(dtype)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        qkv = self.qkv(x, self.attention_norm)
        seen = self.attention(qkv, batch, batch.parts(self.index), rotary, angles)
        return self.output(seen, added=x)

    def one_row(self) -> RowLayer | None:
        first, back = self.qkv.alone, self.output.alone
        route = None if self.router is None else self.router.alone
        if first is None or back is None or route is None or self.mlp is not None:
            return None
        layer = RowLayer(
            self.attention_norm.alone, first, self.attention.alone, self.attention.kv_heads, back, self.feed_norm.alone,
            route,
        )  # fmt: skip
        return layer if layer.serves else None
