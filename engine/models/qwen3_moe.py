"""Qwen3-MoE (arXiv 2505.09388): q and k normed head by head, heads wider than hidden / heads, some layers
dense."""

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
from engine.models import Family
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter


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
    normalise: bool
    attention_bias: bool
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
    layers = read.count("num_hidden_layers", default=24)
    experts = read.count("num_experts", "num_local_experts", default=128, least=0)
    dense = {*read.counts("mlp_only_layers", default=())}
    step = read.count("decoder_sparse_step", default=1)
    sparse = [layer for layer in range(layers) if experts and layer not in dense and (layer + 1) % step == 0]
    context = read.count("max_position_embeddings", default=32768)
    rope = RopeSettings.of(read, context=context)
    windowed = read.flag("use_sliding_window", default=False) and "sliding_window" in read
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=6144),
        expert_intermediate=read.count("moe_intermediate_size", default=768),
        layers=layers,
        sparse_layers=tuple(sparse),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=4),
        head_dim=read.count("head_dim", default=hidden // heads),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8),
        normalise=read.flag("norm_topk_prob", default=False),
        attention_bias=read.flag("attention_bias", default=False),
        window=read.count("sliding_window") if windowed else None,
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocabulary=read.count("vocab_size", default=151936),
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
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, q_norm, k_norm, window=c.window)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width, bias=c.attention_bias)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        if index in c.sparse_layers:
            gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
            self.router = SoftmaxRouter(gate, c.experts_per_token, c.normalise)
        else:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, c.activation)


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim))


FAMILY = Family("Qwen3-MoE", ("qwen3_moe",), parse, experts, build, verified=("bf16", "int4"))
