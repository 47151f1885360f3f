"""OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): every layer sparse, q and k normed over all heads at
once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.config import Reader
from engine.decoder import Decoder
from engine.experts import ExpertLayout, mlp_experts
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import Activation, RowLayer
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Batch, Family
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    normalise: bool
    clip_qkv: float | None
    attention_bias: bool
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(sliding_window=())
    heads = read.count("num_attention_heads", default=16)
    experts = read.count("num_experts", "num_local_experts", default=64)
    context = read.count("max_position_embeddings", default=4096)
    rope = RopeSettings.of(read, context=context)
    return Config(
        hidden=read.count("hidden_size"),
        intermediate=read.count("intermediate_size", default=2048),
        layers=read.count("num_hidden_layers", default=16),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=heads),
        head_dim=read.count("head_dim", default=read.count("hidden_size") // heads),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8),
        normalise=read.flag("norm_topk_prob", default=False),
        clip_qkv=read.number("clip_qkv", default=None),
        attention_bias=read.flag("attention_bias", default=False),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size", default=50304),
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
        self.q_norm = Norm(load.vector(f"{attention}.q_norm", q_width), c.epsilon)
        self.k_norm = Norm(load.vector(f"{attention}.k_norm", kv_width), c.epsilon)
        norms = (self.q_norm, self.k_norm) if c.clip_qkv is None else (None, None)
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, *norms)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width, bias=c.attention_bias)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
        self.router = SoftmaxRouter(gate, c.experts_per_token, c.normalise)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        clip = self.config.clip_qkv
        if clip is None:
            return super().attend(x, batch, rotary, angles)
        q, k, v = self.qkv(x, self.attention_norm)
        qkv = [np.clip(rows, -clip, clip) for rows in (self.q_norm(q), self.k_norm(k), v)]
        return self.output(self.attention(qkv, batch, batch.parts(self.index), rotary, angles), added=x)

    def one_row(self) -> RowLayer | None:
        return super().one_row() if self.config.clip_qkv is None else None


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim))


FAMILY = Family("OLMoE", ("olmoe",), parse, experts, build, verified=("bf16", "f16", "f32"))
