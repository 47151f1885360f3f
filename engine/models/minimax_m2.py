"""MiniMax-M2: q and k normed over all heads, part of a head rotated, sigmoid router with a correction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.config import Reader
from engine.errors import ConfigError
from engine.experts import ExpertLayout, ExpertRefs, Experts, MatrixRef
from engine.kernels import Activation
from engine.layers import Norm, attend
from engine.loader import Loader
from engine.models import Batch, Family, Model, beyond
from engine.rotary import RopeSettings, Rotary
from engine.router import SigmoidRouter

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
    rotary_dim: int
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(
        hidden_act="silu",
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
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads")
    context = read.count("max_position_embeddings", default=196608)
    rope = RopeSettings.of(read, theta=5e6, context=context)
    head_dim = read.count("head_dim", default=128)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size"),
        layers=read.count("num_hidden_layers"),
        heads=heads,
        kv_heads=read.count("num_key_value_heads", default=8),
        head_dim=head_dim,
        experts=read.count("num_local_experts", "num_experts", default=256),
        experts_per_token=read.count("num_experts_per_tok", default=8),
        rotary_dim=read.count("rotary_dim", default=int(head_dim * rope.partial)),
        epsilon=read.number("rms_norm_eps", default=1e-6),
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
        self.q_norm = Norm(load.vector(f"{attention}.q_norm", q_width), c.epsilon)
        self.k_norm = Norm(load.vector(f"{attention}.k_norm", kv_width), c.epsilon)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.expert_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.block_sparse_moe.gate", c.experts, c.hidden, exact=True)
        correction = load.vector(f"{name}.block_sparse_moe.e_score_correction_bias", c.experts)
        self.router = SigmoidRouter(gate, c.experts_per_token, correction)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        c, count = self.config, len(batch)
        q, k, v = self.qkv(self.attention_norm(x))
        q = rotary.turn(self.q_norm(q).reshape(count, c.heads, c.head_dim), angles)
        k = rotary.turn(self.k_norm(k).reshape(count, c.kv_heads, c.head_dim), angles)
        v = v.reshape(count, c.kv_heads, c.head_dim)
        seen = attend(batch, batch.parts(self.index), q, k, v, scale=c.head_dim**-0.5)
        return x + self.output(seen)

    def feed(self, x: F32, experts: Experts) -> F32:
        rows = self.expert_norm(x)
        return x + experts(self.index, rows, *self.router(rows))

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        experts.prefetch(self.index, self.router(self.expert_norm(x))[0])


class MiniMaxM2(Model):
    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self.vocab_size, self.context_length = config.vocabulary, config.context
        self.layers_count = config.layers
        self.embedding = load.embedding("model.embed_tokens", config.vocabulary, config.hidden)
        self.rotary = Rotary.of(config.rope, config.rotary_dim)
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


FAMILY = Family(
    "MiniMax-M2",
    ("minimax_m2",),
    parse,
    experts,
    MiniMaxM2,
    skips=lambda config, name: beyond(name, config.layers),
    verified=("bf16", "fp8"),
)
