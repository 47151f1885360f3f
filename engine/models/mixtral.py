"""Mixtral (arXiv 2401.04088): experts w1 (gate), w2 (down), w3 (up); softmax over the chosen; a window."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.config import Reader
from engine.experts import ExpertLayout, ExpertRefs, Experts, MatrixRef
from engine.kernels import Activation
from engine.layers import Norm, attend
from engine.loader import Loader
from engine.models import Batch, Family, Model
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter

SILU = Activation("silu")


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
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(hidden_act="silu")
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads")
    context = read.count("max_position_embeddings", default=131072)
    rope = RopeSettings.of(read, theta=1e6, context=context)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size"),
        layers=read.count("num_hidden_layers"),
        heads=heads,
        kv_heads=read.count("num_key_value_heads", default=heads),
        head_dim=read.count("head_dim", default=hidden // heads),
        experts=read.count("num_local_experts", "num_experts", default=8),
        experts_per_token=read.count("num_experts_per_tok", default=2),
        window=read.count("sliding_window") if "sliding_window" in read else None,
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size"),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    def refs(layer: int, expert: int) -> ExpertRefs:
        name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        return ExpertRefs(
            gate=MatrixRef(f"{name}.w1"), up=MatrixRef(f"{name}.w3"), down=MatrixRef(f"{name}.w2")
        )

    return ExpertLayout(config.hidden, config.intermediate, SILU, config.experts, range(config.layers), refs)


class Layer:
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
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.expert_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.block_sparse_moe.gate", c.experts, c.hidden, exact=True)
        # A softmax over the chosen is a softmax over all, divided by the sum of the chosen.
        self.router = SoftmaxRouter(gate, c.experts_per_token, normalise=True)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        c, count = self.config, len(batch)
        q, k, v = self.qkv(self.attention_norm(x))
        q = rotary.turn(q.reshape(count, c.heads, c.head_dim), angles)
        k = rotary.turn(k.reshape(count, c.kv_heads, c.head_dim), angles)
        v = v.reshape(count, c.kv_heads, c.head_dim)
        seen = attend(batch, batch.parts(self.index), q, k, v, scale=c.head_dim**-0.5, window=c.window)
        return x + self.output(seen)

    def feed(self, x: F32, experts: Experts) -> F32:
        rows = self.expert_norm(x)
        return x + experts(self.index, rows, *self.router(rows))

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        experts.prefetch(self.index, self.router(self.expert_norm(x))[0])


class Mixtral(Model):
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
        return State([KeyValue([width, width], self.cache_dtype, self.config.window) for _ in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotary.angles(batch.positions)
        for layer in self.layers:
            x = layer.attend(x, batch, self.rotary, angles)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(self.norm(batch.select(x)))


FAMILY = Family("Mixtral", ("mixtral",), parse, experts, Mixtral, verified=("bf16",))
