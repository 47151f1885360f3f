"""Qwen3-Next (blog of September 2025; gated delta net: arXiv 2412.06464): three layers of linear attention to
one of gated attention, a gated shared expert, norms that multiply by 1 + weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue, Running, State
from engine.config import Reader
from engine.decoder import FeedForward, Frame
from engine.delta import DeltaShape, Forgetting, gated_by_silu, load_taps
from engine.experts import ExpertLayout, Experts, mlp_experts
from engine.kernels import sigmoid
from engine.layers import Linear, Norm, Stack, activation_of, attend
from engine.loader import Loader
from engine.models import Batch, Family
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    shared_intermediate: int
    layers: int
    linear: tuple[bool, ...]  # by layer: delta rule or full attention
    sparse_layers: tuple[int, ...]
    delta: DeltaShape
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    experts: int
    experts_per_token: int
    normalise: bool
    epsilon: float
    plus_one: bool  # norms multiply by 1 + weight; in GGUF files the weights are these sums
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader({"partial_rotary_factor": 0.25, **config})
    read.refuse(use_sliding_window=False)
    heads, layers = read.count("num_attention_heads", default=16), read.count("num_hidden_layers", default=48)
    experts = read.count("num_experts", "num_local_experts", default=512, least=0)
    dense = {*read.counts("mlp_only_layers", default=())}
    step = read.count("decoder_sparse_step", default=1)
    sparse = [layer for layer in range(layers) if experts and layer not in dense and (layer + 1) % step == 0]
    context = read.count("max_position_embeddings", default=32768)
    rope = RopeSettings.of(read, context=context)
    head_dim = read.count("head_dim", default=256)
    value_heads = read.count("linear_num_value_heads", default=32)
    delta = DeltaShape(
        key_heads=read.divisor("linear_num_key_heads", of=value_heads, default=16),
        heads=value_heads,
        key_dim=read.count("linear_key_head_dim", default=128),
        value_dim=read.count("linear_value_head_dim", default=128),
        taps=read.count("linear_conv_kernel_dim", default=4),
        activation=activation_of(read),
    )
    return Config(
        hidden=read.count("hidden_size"),
        intermediate=read.count("intermediate_size", default=5632),
        expert_intermediate=read.count("moe_intermediate_size", default=512),
        shared_intermediate=read.count("shared_expert_intermediate_size", default=512),
        layers=layers,
        linear=linear_layers(read, layers),
        sparse_layers=tuple(sparse),
        delta=delta,
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=2),
        head_dim=head_dim,
        attention_bias=read.flag("attention_bias", default=False),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=10, most=max(experts, 10)),
        normalise=read.flag("norm_topk_prob", default=True),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        plus_one=not read.flag("norm_weights_hold_one", default=False),
        rope=rope,
        vocabulary=read.count("vocab_size", default=151936),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def linear_layers(read: Reader, layers: int) -> tuple[bool, ...]:
    """Which layers attend by the delta rule: `layer_types`, or all but every `full_attention_interval`-th."""
    interval = read.count("full_attention_interval", default=4)
    usual = ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]
    kinds = read.kinds("layer_types", layers, usual, ("linear_attention", "full_attention"))
    return tuple(kind == "linear_attention" for kind in kinds)


def experts(config: Config) -> ExpertLayout:
    return ExpertLayout(
        config.hidden,
        config.expert_intermediate,
        config.delta.activation,
        config.experts,
        config.sparse_layers,
        mlp_experts,
    )


class DeltaNet:
    """Linear attention: what the projections give is ordered by key head, each with its questions, keys,
    values and output gates; likewise the write strengths and the decays. GGUF files have the questions, keys and
    values of all heads, one kind after the other, and the gates, apart."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        d = self.shape = config.delta
        apart = [f"{name}.in_proj_{part}" for part in ("qkv", "z")]  # in GGUF files; not by key head
        self.qkvz: Linear | Stack = (
            load.stack(apart, [d.channels, d.values], config.hidden)
            if f"{apart[0]}.weight" in load
            else load.linear(f"{name}.in_proj_qkvz", d.channels + d.values, config.hidden)
        )
        self.ba = load.linear(f"{name}.in_proj_ba", 2 * d.heads, config.hidden, exact=True)
        self.taps = load_taps(load, [f"{name}.conv1d.weight"], [d.channels], d.taps)
        self.forget = Forgetting.load(load, name, d.heads)
        self.norm = Norm(load.vector(f"{name}.norm", d.value_dim), config.epsilon)
        self.output = load.linear(f"{name}.out_proj", config.hidden, d.values)

    def new_part(self, dtype: np.dtype[np.generic]) -> Running:
        """The memory of this layer for one sequence."""
        return self.shape.new_part()

    def __call__(self, x: F32, batch: Batch, parts: list[Any], angles: tuple[F32, F32]) -> F32:
        d, count = self.shape, len(x)
        mixed, z = self._project(x)
        strength, decay = np.split(self.ba(x).reshape(count, d.key_heads, -1), 2, 2)
        seen = d.seen(
            mixed,
            self.taps,
            self.forget(decay.reshape(count, -1)),
            sigmoid(strength.reshape(count, -1)),
            batch,
            parts,
        )
        return self.output(gated_by_silu(self.norm, seen, z.reshape(seen.shape)))

    def _project(self, x: F32) -> tuple[F32, F32]:
        """What the convolution mixes [N, channels], and the output gates [N, values]."""
        d, count = self.shape, len(x)
        if isinstance(self.qkvz, Stack):
            mixed, z = self.qkvz(x)
            return mixed, z
        grouped = self.qkvz(x).reshape(count, d.key_heads, -1)
        ends = np.cumsum([d.key_dim, d.key_dim, d.heads // d.key_heads * d.value_dim])
        q, k, v, z = (part.reshape(count, -1) for part in np.split(grouped, ends, 2))
        return np.concatenate([q, k, v], 1), z


class GatedAttention:
    """Full attention whose output is gated: q_proj gives each head its question and its gate."""

    def __init__(self, config: Config, load: Loader, name: str, rotary: Rotary) -> None:
        c = self.config = config
        self.rotary = rotary
        q_width, kv_width = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.qkv = load.stack(
            [f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"],
            [2 * q_width, kv_width, kv_width],
            c.hidden,
            bias=c.attention_bias,
        )
        self.q_norm = Norm(load.vector(f"{name}.q_norm", c.head_dim), c.epsilon, plus_one=c.plus_one)
        self.k_norm = Norm(load.vector(f"{name}.k_norm", c.head_dim), c.epsilon, plus_one=c.plus_one)
        self.output = load.linear(f"{name}.o_proj", c.hidden, q_width, bias=c.attention_bias)

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        """The memory of this layer for one sequence."""
        width = (self.config.kv_heads, self.config.head_dim)
        return KeyValue([width, width], dtype)

    def __call__(self, x: F32, batch: Batch, parts: list[Any], angles: tuple[F32, F32]) -> F32:
        c, count = self.config, len(x)
        asked, k, v = self.qkv(x)
        q, gate = np.split(asked.reshape(count, c.heads, 2 * c.head_dim), 2, 2)
        q = self.rotary.turn(self.q_norm(q), angles)
        k = self.rotary.turn(self.k_norm(k.reshape(count, c.kv_heads, c.head_dim)), angles)
        v = v.reshape(count, c.kv_heads, c.head_dim)
        seen = attend(batch, parts, q, k, v, scale=c.head_dim**-0.5)
        return self.output(seen * sigmoid(gate.reshape(count, -1)))


class Layer(FeedForward):
    def __init__(self, config: Config, load: Loader, index: int, rotary: Rotary) -> None:
        name, c = f"model.layers.{index}", config
        self.index = index
        self.attention_norm = Norm(
            load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon, plus_one=c.plus_one
        )
        self.mixer: DeltaNet | GatedAttention = (
            DeltaNet(c, load, f"{name}.linear_attn")
            if c.linear[index]
            else GatedAttention(c, load, f"{name}.self_attn", rotary)
        )
        self.feed_norm = Norm(
            load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon, plus_one=c.plus_one
        )
        if index in c.sparse_layers:
            gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
            self.router = SoftmaxRouter(gate, c.experts_per_token, c.normalise)
            self.mlp = load.mlp(
                f"{name}.mlp.shared_expert", c.hidden, c.shared_intermediate, c.delta.activation
            )
            self.shared_gate = load.linear(f"{name}.mlp.shared_expert_gate", 1, c.hidden, exact=True)
        else:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, c.delta.activation)

    def attend(self, x: F32, batch: Batch, angles: tuple[F32, F32]) -> F32:
        return x + self.mixer(self.attention_norm(x), batch, batch.parts(self.index), angles)

    def beside(self, rows: F32) -> F32 | None:
        out = super().beside(rows)
        return out if out is None or self.router is None else sigmoid(self.shared_gate(rows)) * out


class Qwen3Next(Frame[Layer]):
    def __init__(self, config: Config, load: Loader) -> None:
        self.rotary = Rotary.of(config.rope, config.head_dim, config.rope.partial)
        self.switches_at = self.rotary.switches_at
        super().__init__(
            config, load, lambda index: Layer(config, load, index, self.rotary), plus_one=config.plus_one
        )

    def new_state(self) -> State:
        return State([layer.mixer.new_part(self.cache_dtype) for layer in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotary.angles(batch.positions, batch.stretched)
        for layer in self.layers:
            x = layer.attend(x, batch, angles)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(batch.select(x), self.norm)


FAMILY = Family(
    "Qwen3-Next",
    ("qwen3_next",),
    parse,
    experts,
    Qwen3Next,
    skips=lambda config, name: name.startswith("mtp."),
    verified=("bf16",),
)
