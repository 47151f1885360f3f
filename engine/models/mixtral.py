"""Mixtral (arXiv 2401.04088): experts w1 (gate), w2 (down), w3 (up); softmax over the chosen; a window."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import Reader
from engine.decoder import Decoder
from engine.experts import ExpertLayout, block_sparse_experts
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import Activation
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Family
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter


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
    window: int | None
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads", default=32)
    context = read.count("max_position_embeddings", default=131072)
    rope = RopeSettings.of(read, theta=1e6, context=context)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=14336),
        layers=read.count("num_hidden_layers", default=32),
        heads=heads,
        kv_heads=read.divisor(
            "num_key_value_heads", of=heads, default=heads if "num_key_value_heads" in config else 8
        ),
        head_dim=read.count("head_dim", default=hidden // heads),
        experts=read.count("num_local_experts", "num_experts", default=8),
        experts_per_token=read.count("num_experts_per_tok", default=2),
        window=read.count("sliding_window") if "sliding_window" in read else None,
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size", default=32000),
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
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, window=c.window)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.block_sparse_moe.gate", c.experts, c.hidden, exact=True)
        # A softmax over the chosen is a softmax over all, divided by the sum of the chosen.
        self.router = SoftmaxRouter(gate, c.experts_per_token, normalise=True)


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim))


FAMILY = Family("Mixtral", ("mixtral",), parse, experts, build, verified=("bf16",))
