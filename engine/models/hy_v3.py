"""Tencent Hy3: a dense first layer, shared experts, q and k normed by head, sigmoid router with a scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import Reader
from engine.decoder import Decoder
from engine.experts import ExpertLayout, mlp_experts
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import Activation
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Family, beyond
from engine.rotary import RopeSettings, Rotary
from engine.router import SigmoidRouter


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    sparse_layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    shared_experts: int
    routing_scale: float
    attention_bias: bool
    mlp_bias: bool
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(
        qk_norm=True,
        moe_router_use_sigmoid=True,
        moe_router_enable_expert_bias=True,
    )
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads", default=64)
    context = read.count("max_position_embeddings", default=131072)
    rope = RopeSettings.of(read, theta=11_158_840.0, context=context)
    layers = read.count("num_hidden_layers", default=80)
    usual = ["sparse" if layer else "dense" for layer in range(layers)]  # whatever first_k_dense_replace says
    kinds = read.kinds("mlp_layer_types", layers, usual, ("dense", "sparse"), longer=True)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=13312),
        expert_intermediate=read.count("moe_intermediate_size", "expert_hidden_dim", default=1536),
        layers=layers,
        sparse_layers=tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse"),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=8),
        head_dim=read.count("head_dim", default=128),
        experts=read.count("num_experts", "num_local_experts", default=192),
        experts_per_token=read.count("num_experts_per_tok", default=8),
        shared_experts=read.count("num_shared_experts", default=1, least=0),
        routing_scale=read.number("router_scaling_factor", default=2.826),
        attention_bias=read.flag("attention_bias", default=False),
        mlp_bias=read.flag("mlp_bias", default=False),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size", default=120832),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    return ExpertLayout(
        config.hidden,
        config.expert_intermediate,
        config.activation,
        config.experts,
        config.sparse_layers,
        mlp_experts,
    )


class Layer(GroupedBlock):
    def __init__(self, config: Config, load: Loader, index: int) -> None:
        name = f"model.layers.{index}"
        c, attention = config, f"{name}.self_attn"
        q_width, kv_width = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config, self.index = config, index
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.qkv = load.stack(
            [f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"],
            [q_width, kv_width, kv_width],
            c.hidden,
            bias=c.attention_bias,
        )
        q_norm = Norm(load.vector(f"{attention}.q_norm", c.head_dim), c.epsilon)
        k_norm = Norm(load.vector(f"{attention}.k_norm", c.head_dim), c.epsilon)
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, q_norm, k_norm)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width, bias=c.attention_bias)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        if index not in c.sparse_layers:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, c.activation, bias=c.mlp_bias)
        else:
            gate = load.linear(f"{name}.mlp.router.gate", c.experts, c.hidden, exact=True)
            correction = load.vector(f"{name}.mlp.expert_bias", c.experts)
            self.router = SigmoidRouter(gate, c.experts_per_token, correction, scale=c.routing_scale)
            shared = c.expert_intermediate * c.shared_experts or c.intermediate  # none: as the reference does
            self.mlp = load.mlp(f"{name}.mlp.shared_mlp", c.hidden, shared, c.activation, bias=c.mlp_bias)


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim))


FAMILY = Family(
    "Hy3",
    ("hy_v3",),
    parse,
    experts,
    build,
    skips=lambda config, name: beyond(name, config.layers),
    verified=("bf16",),
)
