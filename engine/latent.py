"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one latent a token is cached.

Keys and values of all heads are linear in the latent c: k_h = K_h c, v_h = V_h c. So q_h · k_h = (K_hᵀ q_h) · c,
and the sum over values is V_h times the sum over latents: every head attends to the latents themselves, and
a token costs its kv_rank + rope_dim numbers of memory instead of those of all heads. The part of the key that
carries the position is shared by the heads and lies behind the latent in the cache.

K_hᵀ and V_h are packed on their own, each a stack with one part a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import F32, I32, joined
from engine.cache import KeyValue
from engine.experts import MatrixRef
from engine.kernels import Matrix, attention
from engine.kernels.heads import matmul_heads
from engine.layers import Linear, Norm
from engine.loader import Loader
from engine.models import Batch
from engine.rotary import Rotary

LATENT_EPSILON = 1e-6  # of the norms of latents, in most families whatever rms_norm_eps says


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Widths: `q_rank` None where q is projected in one step; `rope` 0 where keys carry no position."""

    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int

    @property
    def cached(self) -> int:
        """Numbers a token in the cache."""
        return self.kv_rank + self.rope


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """The rows of a pass as the heads ask: q f32 [N, H, kv_rank + rope], and what q was made of.

    `source` [N, q_rank] is the normed latent of q, or the input rows where there is none.
    """

    q: F32
    source: F32


def _whole(both: F32, s: LatentShape) -> tuple[list[F32], list[F32]]:
    """K_hᵀ and V_h of each head, from kv_b_proj."""
    by_head = both.reshape(s.heads, s.nope + s.value, s.kv_rank)
    return [head[: s.nope].T for head in by_head], [head[s.nope :] for head in by_head]


def _halves(load: Loader, name: str, s: LatentShape) -> tuple[list[F32], list[F32]]:
    """The same where a GGUF file has them: k_b_proj [heads, kv_rank, nope] and v_b_proj [heads, value, kv_rank]."""
    keys = [load.matrix(MatrixRef(f"{name}.k_b_proj", head), s.kv_rank, s.nope) for head in range(s.heads)]
    values = [load.matrix(MatrixRef(f"{name}.v_b_proj", head), s.value, s.kv_rank) for head in range(s.heads)]
    return keys, values


class LatentAttention:
    """The projections of one layer, and attention over the cached latents."""

    def __init__(
        self,
        load: Loader,
        name: str,
        shape: LatentShape,
        *,
        bias: bool = False,
        scale: float | None = None,
        epsilon: float = LATENT_EPSILON,
    ) -> None:
        s = shape
        self.shape = shape
        self.scale = (s.nope + s.rope) ** -0.5 if scale is None else scale
        q_width = s.heads * (s.nope + s.rope)
        if s.q_rank is None:
            self.q: Linear = load.linear(f"{name}.q_proj", q_width, s.hidden)
        else:
            self.q_down = load.linear(f"{name}.q_a_proj", s.q_rank, s.hidden, bias=bias)
            self.q_norm = Norm(load.vector(f"{name}.q_a_layernorm", s.q_rank), epsilon)
            self.q = load.linear(f"{name}.q_b_proj", q_width, s.q_rank)
        self.kv_down = load.linear(f"{name}.kv_a_proj_with_mqa", s.cached, s.hidden, bias=bias)
        self.kv_norm = Norm(load.vector(f"{name}.kv_a_layernorm", s.kv_rank), epsilon)
        keys, values = (
            _halves(load, name, s)
            if f"{name}.k_b_proj.weight" in load
            else _whole(load.matrix(f"{name}.kv_b_proj", s.heads * (s.nope + s.value), s.kv_rank), s)
        )
        self.key_in: Matrix = load.by_head(keys)
        self.value_out: Matrix = load.by_head(values)

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        """The cache of this layer for one sequence."""
        return KeyValue([(1, self.shape.cached)], dtype)

    def query(self, x: F32, rotary: Rotary | None, angles: tuple[F32, F32] | None) -> Query:
        """x [N, hidden] -> the heads' questions to the latents."""
        s, count = self.shape, len(x)
        source = x if s.q_rank is None else self.q_norm(self.q_down(x))
        q = self.q(source).reshape(count, s.heads, s.nope + s.rope)
        asked = [matmul_heads(q[:, :, : s.nope], self.key_in)]
        if s.rope:
            turned = np.ascontiguousarray(q[:, :, s.nope :])
            asked.append(turned if rotary is None or angles is None else rotary.turn(turned, angles))
        return Query(np.concatenate(asked, 2) if s.rope else asked[0], source)

    def write(
        self,
        x: F32,
        batch: Batch,
        parts: Sequence[KeyValue],
        rotary: Rotary | None,
        angles: tuple[F32, F32] | None,
    ) -> None:
        """Puts the rows' latents into their sequences' caches."""
        s = self.shape
        down = self.kv_down(x)
        latent = self.kv_norm(np.ascontiguousarray(down[:, : s.kv_rank]))[:, None]
        if s.rope:
            key = np.ascontiguousarray(down[:, None, s.kv_rank :])
            if rotary is not None and angles is not None:
                key = rotary.turn(key, angles)
            latent = np.concatenate([latent, key], 2)
        for part, rows in zip(parts, batch.slices, strict=True):
            part.write(int(batch.positions[rows.start]), latent[rows])

    def seen(
        self,
        query: Query,
        batch: Batch,
        parts: Sequence[KeyValue],
        chosen: Sequence[I32 | None] | None = None,
    ) -> F32:
        """Attends: -> [N, H · value]. `chosen`: by sequence, the positions that each row may see (see `keys` of
        `kernels.attention`), None where it may see all."""
        s = self.shape
        outputs = []
        for index, (part, rows) in enumerate(zip(parts, batch.slices, strict=True)):
            latents = part.arrays[0]
            outputs.append(
                attention(
                    query.q[rows],
                    latents,
                    latents,
                    batch.positions[rows],
                    scale=self.scale,
                    value_dim=s.kv_rank,
                    keys=None if chosen is None else chosen[index],
                )
            )
        summed = joined(outputs)
        return matmul_heads(summed, self.value_out).reshape(len(batch), -1)
