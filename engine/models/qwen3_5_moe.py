"""Qwen3.5-MoE and Qwen3.6-MoE, text only: Qwen3-Next's layers, every one sparse, with projections of their
own for each part of the linear attention and experts fused into one tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue, Running, State
from engine.config import Reader, text_part
from engine.decoder import Frame
from engine.delta import DeltaShape, Forgetting, gated_by_silu, load_taps
from engine.experts import ExpertLayout, ExpertRefs, Experts, MatrixRef
from engine.kernels import sigmoid
from engine.layers import Norm, activation_of, attend
from engine.loader import Loader
from engine.models import Batch, Family, beyond
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter

WHOLE, TEXT = "model.language_model", "model"  # where the text model lies in a multimodal release, and alone


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    expert_intermediate: int
    shared_intermediate: int
    layers: int
    linear: tuple[bool, ...]  # by layer: delta rule or full attention
    delta: DeltaShape
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    experts: int
    experts_per_token: int
    epsilon: float
    plus_one: bool  # norms multiply by 1 + weight; in GGUF files the weights are these sums
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader({"partial_rotary_factor": 0.25, **text_part(config)})
    read.refuse(attn_output_gate=True, use_sliding_window=False, mlp_only_layers=[])
    heads, layers = read.count("num_attention_heads", default=16), read.count("num_hidden_layers", default=40)
    context = read.count("max_position_embeddings", default=32768)
    rope = RopeSettings.of(read, context=context)
    head_dim = read.count("head_dim", default=256)
    value_heads = read.count("linear_num_value_heads", default=32)
    return Config(
        hidden=read.count("hidden_size"),
        expert_intermediate=read.count("moe_intermediate_size", default=512),
        shared_intermediate=read.count("shared_expert_intermediate_size", default=512),
        layers=layers,
        linear=linear_layers(read, layers),
        delta=DeltaShape(
            key_heads=read.divisor("linear_num_key_heads", of=value_heads, default=16),
            heads=value_heads,
            key_dim=read.count("linear_key_head_dim", default=128),
            value_dim=read.count("linear_value_head_dim", default=128),
            taps=read.count("linear_conv_kernel_dim", default=4),
            tiled=read.flag("linear_value_heads_tiled", default=False),
            activation=activation_of(read),
        ),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=2),
        head_dim=head_dim,
        attention_bias=read.flag("attention_bias", default=False),
        experts=read.count("num_experts", "num_local_experts", default=256),
        experts_per_token=read.count("num_experts_per_tok", default=8),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        plus_one=not read.flag("norm_weights_hold_one", default=False),
        rope=rope,
        vocabulary=read.count("vocab_size", default=248320),
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
    count = config.expert_intermediate

    def fused(model: str, layer: int, expert: int) -> ExpertRefs:
        name = f"{model}.layers.{layer}.mlp.experts"
        both = f"{name}.gate_up_proj"
        return ExpertRefs(
            gate=MatrixRef(both, expert, 0, count=count),
            up=MatrixRef(both, expert, count, count=count),
            down=MatrixRef(f"{name}.down_proj", expert),
        )

    def apart(model: str, layer: int, expert: int) -> ExpertRefs:
        return ExpertRefs.within(f"{model}.layers.{layer}.mlp.experts.{expert}")

    first, *others = (partial(form, model) for model in (WHOLE, TEXT) for form in (fused, apart))
    return ExpertLayout(
        config.hidden, count, config.delta.activation, config.experts, range(config.layers), first, others
    )


class DeltaNet:
    """Linear attention by the gated delta rule."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        d = self.shape = config.delta
        self.qkvz = load.stack(
            [f"{name}.in_proj_qkv", f"{name}.in_proj_z"], [d.channels, d.values], config.hidden
        )
        self.strength = load.linear(f"{name}.in_proj_b", d.heads, config.hidden, exact=True)
        self.decay = load.linear(f"{name}.in_proj_a", d.heads, config.hidden, exact=True)
        self.taps = load_taps(load, [f"{name}.conv1d.weight"], [d.channels], d.taps)
        self.forget = Forgetting.load(load, name, d.heads)
        self.norm = Norm(load.vector(f"{name}.norm", d.value_dim), config.epsilon)
        self.output = load.linear(f"{name}.out_proj", config.hidden, d.values)

    def new_part(self, dtype: np.dtype[np.generic]) -> Running:
        """The memory of this layer for one sequence."""
        return self.shape.new_part()

    def __call__(self, x: F32, batch: Batch, parts: list[Any], angles: tuple[F32, F32]) -> F32:
        mixed, z = self.qkvz(x)
        decay, beta = self.forget(self.decay(x)), sigmoid(self.strength(x))
        seen = self.shape.seen(mixed, self.taps, decay, beta, batch, parts)
        return self.output(gated_by_silu(self.norm, seen, z.reshape(seen.shape)))


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


class Layer:
    def __init__(self, config: Config, load: Loader, name: str, index: int, rotary: Rotary) -> None:
        c = config
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
        gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
        self.router = SoftmaxRouter(gate, c.experts_per_token, normalise=True)
        self.shared = load.mlp(
            f"{name}.mlp.shared_expert", c.hidden, c.shared_intermediate, c.delta.activation
        )
        self.shared_gate = load.linear(f"{name}.mlp.shared_expert_gate", 1, c.hidden, exact=True)

    def attend(self, x: F32, batch: Batch, angles: tuple[F32, F32]) -> F32:
        return x + self.mixer(self.attention_norm(x), batch, batch.parts(self.index), angles)

    def feed(self, x: F32, experts: Experts) -> F32:
        rows = self.feed_norm(x)
        routed = experts.begin(self.index, rows, *self.router(rows))
        shared = sigmoid(self.shared_gate(rows)) * self.shared(rows)
        return x + (routed() + shared)

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        experts.prefetch(self.index, self.router(self.feed_norm(x))[0])


class Qwen35Moe(Frame[Layer]):
    def __init__(self, config: Config, load: Loader) -> None:
        name = WHOLE if f"{WHOLE}.embed_tokens.weight" in load else TEXT
        self.rotary = Rotary.of(config.rope, config.head_dim, config.rope.partial)
        self.switches_at = self.rotary.switches_at

        def layer(index: int) -> Layer:
            return Layer(config, load, f"{name}.layers.{index}", index, self.rotary)

        super().__init__(config, load, layer, base=name, plus_one=config.plus_one)

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


def skips(config: Config, name: str) -> bool:
    """Multi-token prediction, in GGUF files a layer past the last, and vision."""
    return name.startswith(("mtp.", "model.visual.", "visual.")) or beyond(name, config.layers)


FAMILY = Family(
    "Qwen3.5-MoE",
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    parse,
    experts,
    Qwen35Moe,
    skips=skips,
    verified=("bf16",),
)
