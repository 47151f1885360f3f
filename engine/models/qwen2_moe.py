"""Qwen2-MoE (arXiv 2407.10671): a shared expert behind a gate of its own; biases on q, k and v."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.arrays import F32
from engine.config import Reader
from engine.decoder import Decoder
from engine.errors import ConfigError
from engine.experts import ExpertLayout, mlp_experts
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import Activation, sigmoid
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
    shared_intermediate: int
    layers: int
    sparse_layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    normalise: bool
    qkv_bias: bool
    windows: tuple[int | None, ...]  # by layer
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads", default=16)
    layers = read.count("num_hidden_layers", default=24)
    experts = read.count("num_experts", "num_local_experts", default=60, least=0)
    dense = {*read.counts("mlp_only_layers", default=())}
    step = read.count("decoder_sparse_step", default=1)
    context = read.count("max_position_embeddings", default=32768)
    rope = RopeSettings.of(read, context=context)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=5632),
        expert_intermediate=read.count("moe_intermediate_size", default=1408),
        shared_intermediate=read.count("shared_expert_intermediate_size", default=5632),
        layers=layers,
        sparse_layers=tuple(
            layer for layer in range(layers) if experts and layer not in dense and (layer + 1) % step == 0
        ),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=16),
        head_dim=read.count("head_dim", default=hidden // heads),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=4),
        normalise=read.flag("norm_topk_prob", default=False),
        qkv_bias=read.flag("qkv_bias", default=True),
        windows=windows(read, layers),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocabulary=read.count("vocab_size", default=151936),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def windows(read: Reader, layers: int) -> tuple[int | None, ...]:
    """How far each layer sees: those of `layer_types`, else every second of the first `max_window_layers`."""
    if not read.flag("use_sliding_window", default=False):
        if "sliding_attention" in read.texts("layer_types", default=()):
            raise ConfigError(f"{read.where}: layer_types names layers that use_sliding_window turns off")
        return (None,) * layers
    window = read.count("sliding_window", default=4096)
    most = read.count("max_window_layers", default=28, least=0)
    usual = [
        "sliding_attention" if layer % 2 == 0 and layer < most else "full_attention"
        for layer in range(layers)
    ]
    kinds = read.kinds("layer_types", layers, usual, ("sliding_attention", "full_attention"))
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


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
            bias=c.qkv_bias,
        )
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, window=c.windows[index])
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        if index in c.sparse_layers:
            gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
            self.router = SoftmaxRouter(gate, c.experts_per_token, c.normalise)
            self.mlp = load.mlp(f"{name}.mlp.shared_expert", c.hidden, c.shared_intermediate, c.activation)
            self.shared_gate = load.linear(f"{name}.mlp.shared_expert_gate", 1, c.hidden, exact=True)
        else:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, c.activation)

    def beside(self, rows: F32) -> F32 | None:
        out = super().beside(rows)
        return out if out is None or self.router is None else sigmoid(self.shared_gate(rows)) * out


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim))


FAMILY = Family("Qwen2-MoE", ("qwen2_moe",), parse, experts, build, verified=("bf16",))
