"""MiniMax-M2: q and k normed over all heads, part of a head rotated, sigmoid router with a correction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import Reader
from engine.decoder import Decoder
from engine.errors import ConfigError
from engine.experts import ExpertLayout, block_sparse_experts
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
    intermediate: int  # of an expert
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    head_dim = read.count("head_dim", default=128)
    if "rotary_dim" in read:  # how releases say what part of a head is turned
        read = Reader({"partial_rotary_factor": read.count("rotary_dim", most=head_dim) / head_dim, **config})
    read.refuse(
        scoring_func="sigmoid",
        use_qk_norm=True,
        qk_norm_type="per_layer",
        use_routing_bias=True,
        shared_intermediate_size=0,
    )
    if any(kind != 1 for kind in read.counts("attn_type_list", default=())):
        raise ConfigError(
            "config.json: attn_type_list asks for linear attention, which MiniMax-M2 does not have"
        )
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads", default=48)
    context = read.count("max_position_embeddings", default=196608)
    rope = RopeSettings.of(read, theta=5e6, context=context)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=1536),
        layers=read.count("num_hidden_layers", default=62),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=8),
        head_dim=head_dim,
        experts=read.count("num_local_experts", "num_experts", default=256),
        experts_per_token=read.count("num_experts_per_tok", default=8),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocabulary=read.count("vocab_size", default=200064),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    return ExpertLayout(
        config.hidden,
        config.intermediate,
        config.activation,
        config.experts,
        range(config.layers),
        block_sparse_experts,
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
        )
        q_norm = Norm(load.vector(f"{attention}.q_norm", q_width), c.epsilon)
        k_norm = Norm(load.vector(f"{attention}.k_norm", kv_width), c.epsilon)
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, q_norm, k_norm)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.block_sparse_moe.gate", c.experts, c.hidden, exact=True)
        correction = load.vector(f"{name}.block_sparse_moe.e_score_correction_bias", c.experts)
        self.router = SigmoidRouter(gate, c.experts_per_token, correction)


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim, config.rope.partial))


FAMILY = Family(
    "MiniMax-M2",
    ("minimax_m2",),
    parse,
    experts,
    build,
    skips=lambda config, name: beyond(name, config.layers),
    verified=("bf16", "fp8"),
)
