"""Linear attention by the delta rule as families use it: convolution, then a state that is written and asked.

A layer's memory of a sequence is the tail of its convolution and one matrix a head (see `kernels.delta`): of
constant size, and cut back only to positions that were kept (`cache.Running`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import F32, joined
from engine.cache import Running
from engine.kernels import Activation, activation, exp, l2_normalize, sigmoid, silu
from engine.kernels.convolution import causal_convolution
from engine.kernels.delta import delta_rule, delta_state, forget
from engine.layers import Norm
from engine.loader import Loader
from engine.models import Batch

SILU = Activation("silu")
UNIT_EPSILON = 1e-6  # inside the root that brings keys and questions to length 1


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads of keys (and questions) and of values, their widths, and how many values the convolution mixes.

    `tiled`: value heads go through all key heads in turn (head h has key head h % key_heads), as GGUF files
    order them; else those of one key head follow one another.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False
    activation: Activation = SILU  # of what was convolved

    @property
    def keys(self) -> int:
        """Width of all keys, and of all questions."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Width of what is convolved: questions, keys and values."""
        return 2 * self.keys + self.values

    def new_part(self) -> Running:
        """The memory of one layer for one sequence."""
        return Running(
            [(self.taps - 1, self.channels), delta_state(self.heads, self.key_dim, self.value_dim)]
        )

    def seen(
        self, mixed: F32, taps: F32, decay: F32, beta: F32, batch: Batch, parts: Sequence[Running]
    ) -> F32:
        """Convolves, writes and asks: -> [N, heads, value_dim].

        mixed [N, channels]: q, k and v side by side; `taps` [taps, channels]; decay [N, heads, 1 or key_dim];
        beta [N, heads].
        """
        outputs = []
        for part, rows in zip(parts, batch.slices, strict=True):
            (tail, before), (next_tail, after) = part.now, part.after
            count = rows.stop - rows.start
            with_silu = self.activation.kind == "silu"
            turned = causal_convolution(mixed[rows], taps, tail, next_tail, silu=with_silu)
            if not with_silu:
                turned = activation(self.activation, turned, np.ones_like(turned))
            q, k = (
                l2_normalize(part.reshape(count, self.key_heads, self.key_dim), UNIT_EPSILON)
                for part in (turned[:, : self.keys], turned[:, self.keys : 2 * self.keys])
            )
            v = turned[:, 2 * self.keys :].reshape(count, self.heads, self.value_dim)
            q *= np.float32(self.key_dim**-0.5)
            if self.tiled:
                q, k = (np.tile(part, (1, self.heads // self.key_heads, 1)) for part in (q, k))
            outputs.append(delta_rule(q, k, v, decay[rows], beta[rows], before, after))
        return joined(outputs)


def load_taps(load: Loader, names: Sequence[str], widths: Sequence[int], taps: int) -> F32:
    """The weights of depthwise convolutions [width, 1, taps], side by side: f32 [taps, sum of widths]."""
    tensors = [load.tensor(name, (width, 1, taps)) for name, width in zip(names, widths, strict=True)]
    return np.ascontiguousarray(np.concatenate(tensors)[:, 0].T)


@dataclass(frozen=True, slots=True, eq=False)
class Forgetting:
    """Turns a gate into factors of decay; see `kernels.delta.forget`. bias [heads, D], rate [heads]."""

    bias: F32
    rate: F32
    bound: float | None = None

    @classmethod
    def load(
        cls, load: Loader, name: str, heads: int, width: int = 1, bound: float | None = None
    ) -> "Forgetting":
        """`width` factors a head, from `name.dt_bias` and `name.A_log`, or A = −exp(A_log) as GGUF files have it."""
        bias = load.vector(f"{name}.dt_bias", heads * width).reshape(heads, width)
        if f"{name}.A" in load:
            return cls(bias, -load.filled_up(f"{name}.A", heads), bound)
        return cls(bias, exp(load.filled_up(f"{name}.A_log", heads)), bound)

    def __call__(self, gate: F32) -> F32:
        """gate [N, heads · D] -> [N, heads, D]."""
        return forget(gate.reshape(len(gate), *self.bias.shape), self.bias, self.rate, self.bound)


def gated_by_silu(norm: Norm, x: F32, gate: F32) -> F32:
    """norm(x) · silu(gate), both [N, heads, D] -> [N, heads · D]."""
    return (norm(x) * silu(gate)).reshape(len(x), -1)


def gated_by_sigmoid(norm: Norm, x: F32, gate: F32) -> F32:
    """norm(x) · sigmoid(gate), both [N, heads, D] -> [N, heads · D]."""
    return (norm(x) * sigmoid(gate)).reshape(len(x), -1)


class KimiDelta:
    """Kimi's delta attention (arXiv 2510.26692): a convolution each on q, k and v, a factor of decay for every
    channel from a gate of low rank, and an output gated by a sigmoid.

    `bound`: the decay's lower bound, None for the unbounded form. `full_rank`: the output gate is one matrix
    (g_proj) and not a product of two (g_a_proj, g_b_proj). Keys and values are of one width.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        hidden: int,
        shape: DeltaShape,
        epsilon: float,
        *,
        bound: float | None = None,
        full_rank: bool = False,
    ) -> None:
        width, rank = shape.values, shape.value_dim
        self.shape = shape
        parts = ("q", "k", "v")
        self.qkv = load.stack([f"{name}.{part}_proj" for part in parts], [width] * 3, hidden)
        self.taps = load_taps(
            load, [f"{name}.{part}_conv1d.weight" for part in parts], [width] * 3, shape.taps
        )
        self.strength = load.linear(f"{name}.b_proj", shape.heads, hidden, exact=True)
        self.fade_in = load.linear(f"{name}.f_a_proj", rank, hidden, exact=True)
        self.fade_out = load.linear(f"{name}.f_b_proj", width, rank, exact=True)
        self.forget = Forgetting.load(load, name, shape.heads, shape.value_dim, bound)
        if full_rank:
            self.gates = [load.linear(f"{name}.g_proj", width, hidden)]
        else:
            self.gates = [
                load.linear(f"{name}.g_a_proj", rank, hidden),
                load.linear(f"{name}.g_b_proj", width, rank, bias=None),
            ]
        self.norm = Norm(load.vector(f"{name}.o_norm", shape.value_dim), epsilon)
        self.output = load.linear(f"{name}.o_proj", hidden, width)

    def new_part(self, dtype: np.dtype[np.generic]) -> Running:
        """The memory of this layer for one sequence."""
        return self.shape.new_part()

    def __call__(self, x: F32, batch: Batch, parts: Sequence[Running]) -> F32:
        """x [N, hidden] -> [N, hidden]."""
        mixed = np.concatenate(self.qkv(x), 1)
        decay, beta = self.forget(self.fade_out(self.fade_in(x))), sigmoid(self.strength(x))
        seen = self.shape.seen(mixed, self.taps, decay, beta, batch, parts)
        gate = x
        for linear in self.gates:
            gate = linear(gate)
        return self.output(gated_by_sigmoid(self.norm, seen, gate.reshape(seen.shape)))
