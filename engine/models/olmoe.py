"""OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): every layer sparse, q and k normed over all heads at
once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.config import Reader
from engine.experts import ExpertLayout, ExpertRefs, Experts, MatrixRef
from engine.kernels import Activation
from engine.layers import Linear, Norm, Stack, attend
from engine.loader import Loader
from engine.models import Batch, Family, Model
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
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(hidden_act="silu", sliding_window=())
    heads = read.count("num_attention_heads")
    experts = read.count("num_experts", "num_local_experts", default=64)
    context = read.count("max_position_embeddings", default=4096)
    rope = RopeSettings.of(read, context=context)
    return Config(
        hidden=read.count("hidden_size"),
        intermediate=read.count("intermediate_size"),
        layers=read.count("num_hidden_layers"),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=heads),
        head_dim=read.count("head_dim", default=read.count("hidden_size") // heads),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8),
        normalise=read.flag("norm_topk_prob", default=False),
        clip_qkv=read.number("clip_qkv", default=None),
        attention_bias=read.flag("attention_bias", default=False),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size"),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    def refs(layer: int, expert: int) -> ExpertRefs:
        name = f"model.layers.{layer}.mlp.experts.{expert}"
        return ExpertRefs(*(MatrixRef(f"{name}.{part}_proj") for part in ("gate", "up", "down")))

    return ExpertLayout(
        config.hidden, config.intermediate, Activation("silu"), config.experts, range(config.layers), refs
    )


class Layer:
    def __init__(self, config: Config, load: Loader, index: int) -> None:
        name = f"model.layers.{index}"
        c, attention = config, f"{name}.self_attn"
        q_width, kv_width = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config, self.index = config, index
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.qkv: Stack = load.stack(
            [f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"],
            [q_width, kv_width, kv_width],
            c.hidden,
            bias=c.attention_bias,
        )
        self.q_norm = Norm(load.vector(f"{attention}.q_norm", q_width), c.epsilon)
        self.k_norm = Norm(load.vector(f"{attention}.k_norm", kv_width), c.epsilon)
        self.output: Linear = load.linear(f"{attention}.o_proj", c.hidden, q_width, bias=c.attention_bias)
        self.expert_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
        self.router = SoftmaxRouter(gate, c.experts_per_token, c.normalise)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        c = self.config
        q, k, v = self.qkv(self.attention_norm(x))
        q, k = self.q_norm(q), self.k_norm(k)
        if c.clip_qkv is not None:
            q, k, v = (np.clip(rows, -c.clip_qkv, c.clip_qkv) for rows in (q, k, v))
        count = len(batch)
        q = rotary.turn(q.reshape(count, c.heads, c.head_dim), angles)
        k = rotary.turn(k.reshape(count, c.kv_heads, c.head_dim), angles)
        v = v.reshape(count, c.kv_heads, c.head_dim)
        seen = attend(batch, batch.parts(self.index), q, k, v, scale=c.head_dim**-0.5)
        return x + self.output(seen)

    def feed(self, x: F32, experts: Experts) -> F32:
        rows = self.expert_norm(x)
        return x + experts(self.index, rows, *self.router(rows))

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        experts.prefetch(self.index, self.router(self.expert_norm(x))[0])


class Olmoe(Model):
    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self.vocab_size, self.context_length = config.vocabulary, config.context
        self.layers_count = config.layers
        self.embedding = load.embedding("model.embed_tokens", config.vocabulary, config.hidden)
        self.rotary = Rotary.of(config.rope, config.head_dim)
        self.layers = [Layer(config, load, index) for index in range(config.layers)]
        self.norm = Norm(load.vector("model.norm", config.hidden), config.epsilon)
        self.head = load.head(
            "lm_head", "model.embed_tokens", config.vocabulary, config.hidden, tied=config.tied
        )
        self.resident_bytes = load.resident_bytes
        self.cache_dtype = load.cache_dtype

    def new_state(self) -> State:
        width = (self.config.kv_heads, self.config.head_dim)
        return State([KeyValue([width, width], self.cache_dtype) for _ in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotary.angles(batch.positions)
        for layer in self.layers:
            x = layer.attend(x, batch, self.rotary, angles)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(self.norm(batch.select(x)))


FAMILY = Family("OLMoE", ("olmoe",), parse, experts, Olmoe, verified=("bf16", "f16", "f32"))
