"""Kimi Linear (arXiv 2510.26692): three layers of delta attention to one of latent attention without
positions, dense first layers, sigmoid router within groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.config import Reader
from engine.decoder import FeedForward, Frame
from engine.delta import DeltaShape, KimiDelta
from engine.errors import ConfigError
from engine.experts import ExpertLayout, Experts, block_sparse_experts
from engine.latent import LatentAttention, LatentShape
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Batch, Family, beyond
from engine.router import SigmoidRouter


@dataclass(frozen=True, slots=True)
class Config:
    latent: LatentShape
    delta: DeltaShape
    linear: tuple[bool, ...]  # by layer: delta or latent attention
    sparse_layers: tuple[int, ...]
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    attention_bias: bool
    experts: int
    experts_per_token: int
    shared_experts: int
    normalise: bool
    routing_scale: float
    groups: int
    groups_kept: int
    epsilon: float
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(
        moe_layer_freq=1,
        moe_router_activation_func="sigmoid",
        mla_use_nope=True,
        mla_use_output_gate=False,
        attn_res_block_size=(),
        routed_expert_hidden_size=(),
    )
    delta = read.part("linear_attn_config") if "linear_attn_config" in read else Reader({})
    hidden, layers = read.count("hidden_size"), read.count("num_hidden_layers", default=27)
    heads = delta.count("num_heads", default=read.count("linear_num_heads", default=32))
    head_dim = delta.count("head_dim", default=read.count("linear_head_dim", default=128))
    taps = read.count("linear_conv_kernel_dim", default=4)
    experts = read.count("num_experts", "num_local_experts", "n_routed_experts", default=256)
    groups = read.divisor("num_expert_group", "n_group", of=experts, default=1)
    return Config(
        latent=LatentShape(
            hidden=hidden,
            heads=read.count("num_attention_heads", default=32),
            q_rank=read.count("q_lora_rank") if "q_lora_rank" in read else None,
            kv_rank=read.count("kv_lora_rank", default=512),
            nope=read.count("qk_nope_head_dim", default=128),
            rope=read.count("qk_rope_head_dim", default=64, least=0),
            value=read.count("v_head_dim", default=128),
        ),
        delta=DeltaShape(
            heads,
            heads,
            head_dim,
            head_dim,
            delta.count("short_conv_kernel_size", default=taps),
            activation=activation_of(read),
        ),
        linear=linear_layers(read, delta, layers),
        sparse_layers=sparse_layers(read, layers),
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=9216),
        expert_intermediate=read.count("moe_intermediate_size", default=1024),
        layers=layers,
        attention_bias=read.flag("attention_bias", default=False),
        experts=experts,
        experts_per_token=read.count("num_experts_per_token", "num_experts_per_tok", default=8, most=experts),
        shared_experts=read.count("num_shared_experts", "n_shared_experts", default=1, least=0),
        normalise=read.flag("moe_renormalize", "norm_topk_prob", default="moe_renormalize" not in config),
        routing_scale=read.number("routed_scaling_factor", default=2.446),
        groups=groups,
        groups_kept=read.count("topk_group", default=1, most=groups),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        vocabulary=read.count("vocab_size", default=163840),
        context=read.count("model_max_length", "max_position_embeddings", default=1 << 20),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def linear_layers(read: Reader, delta: Reader, layers: int) -> tuple[bool, ...]:
    """Which layers use delta attention: `layer_types`, or the lists of layers (counted from 1) in
    `linear_attn_config`, or all but every fourth."""
    kinds = ["full_attention" if layer and layer % 4 == 0 else "linear_attention" for layer in range(layers)]
    if "full_attn_layers" in delta and "kda_layers" in delta:
        full, linear = (delta.counts(key, least=1) for key in ("full_attn_layers", "kda_layers"))
        if sorted(full + linear) != list(range(1, layers + 1)):
            raise ConfigError(f"{delta.where} does not name each of {layers} layers once, counted from 1")
        kinds = ["full_attention" if layer + 1 in full else "linear_attention" for layer in range(layers)]
    named = read.kinds("layer_types", layers, kinds, ("linear_attention", "full_attention"))
    return tuple(kind == "linear_attention" for kind in named)


def sparse_layers(read: Reader, layers: int) -> tuple[int, ...]:
    """Which layers have experts: `mlp_layer_types`, or all but the first `first_k_dense_replace`."""
    dense = read.count("first_k_dense_replace", default=1, least=0)
    usual = ["dense" if layer < dense else "sparse" for layer in range(layers)]
    kinds = read.kinds("mlp_layer_types", layers, usual, ("dense", "sparse"))
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")


def experts(config: Config) -> ExpertLayout:
    return ExpertLayout(
        config.hidden,
        config.expert_intermediate,
        config.delta.activation,
        config.experts,
        config.sparse_layers,
        block_sparse_experts,
    )


class Latent:
    """Latent attention; the part of keys that elsewhere carries the position is there, and not turned."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        s, bias = config.latent, config.attention_bias
        self.attention = LatentAttention(load, name, s, bias=bias)
        self.output = load.linear(f"{name}.o_proj", config.hidden, s.heads * s.value, bias=bias)

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        """The memory of this layer for one sequence."""
        return self.attention.new_part(dtype)

    def __call__(self, x: F32, batch: Batch, parts: list[Any]) -> F32:
        self.attention.write(x, batch, parts, None, None)
        return self.output(self.attention.seen(self.attention.query(x, None, None), batch, parts))


class Layer(FeedForward):
    def __init__(self, config: Config, load: Loader, index: int) -> None:
        name, c = f"model.layers.{index}", config
        self.index = index
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.mixer: KimiDelta | Latent = (
            KimiDelta(load, f"{name}.self_attn", c.hidden, c.delta, c.epsilon)
            if c.linear[index]
            else Latent(c, load, f"{name}.self_attn")
        )
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        if index in c.sparse_layers:
            moe = f"{name}.block_sparse_moe"
            gate = load.linear(f"{moe}.gate", c.experts, c.hidden, exact=True)
            correction = load.vector(f"{moe}.gate.e_score_correction_bias", c.experts)
            self.router = SigmoidRouter(
                gate, c.experts_per_token, correction, c.normalise, c.routing_scale, c.groups, c.groups_kept
            )
            shared = c.expert_intermediate * c.shared_experts
            if shared:
                self.mlp = load.mlp(f"{moe}.shared_experts", c.hidden, shared, c.delta.activation)
        else:
            saved_again = (
                f"{name}.block_sparse_moe.gate_proj.weight" in load
            )  # by a library that has one name for both
            dense = f"{name}.block_sparse_moe" if saved_again else f"{name}.mlp"
            self.mlp = load.mlp(dense, c.hidden, c.intermediate, c.delta.activation)

    def attend(self, x: F32, batch: Batch) -> F32:
        return x + self.mixer(self.attention_norm(x), batch, batch.parts(self.index))


class KimiLinear(Frame[Layer]):
    def __init__(self, config: Config, load: Loader) -> None:
        super().__init__(config, load, partial(Layer, config, load))

    def new_state(self) -> State:
        return State([layer.mixer.new_part(self.cache_dtype) for layer in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        for layer in self.layers:
            x = layer.attend(x, batch)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(batch.select(x), self.norm)


FAMILY = Family(
    "Kimi Linear",
    ("kimi_linear",),
    parse,
    experts,
    KimiLinear,
    skips=lambda config, name: beyond(name, config.layers),
    verified=("bf16",),
)
