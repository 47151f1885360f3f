"""Qwen2-MoE (arXiv 2407.10671): a shared expert behind a gate of its own; biases on q, k and v."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.config import Reader
from engine.errors import ConfigError
from engine.experts import ExpertLayout, ExpertRefs, Experts, MatrixRef
from engine.kernels import Activation, sigmoid
from engine.layers import Norm, attend
from engine.loader import Loader
from engine.models import Batch, Family, Model
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter

SILU = Activation("silu")


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
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(hidden_act="silu")
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads")
    layers = read.count("num_hidden_layers")
    dense = read.counts("mlp_only_layers", default=())
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
            layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0
        ),
        heads=heads,
        kv_heads=read.count("num_key_value_heads", default=heads),
        head_dim=read.count("head_dim", default=hidden // heads),
        experts=read.count("num_experts", "num_local_experts", default=60),
        experts_per_token=read.count("num_experts_per_tok", default=4),
        normalise=read.flag("norm_topk_prob", default=False),
        qkv_bias=read.flag("qkv_bias", default=True),
        windows=windows(read, layers),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocabulary=read.count("vocab_size"),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def windows(read: Reader, layers: int) -> tuple[int | None, ...]:
    """How far each layer sees: those of `layer_types`, else every second of the first `max_window_layers`."""
    if not read.flag("use_sliding_window", default=False):
        return (None,) * layers
    window = read.count("sliding_window", default=4096)
    most = read.count("max_window_layers", default=28, least=0)
    kinds = read.texts(
        "layer_types",
        default=[
            "sliding_attention" if layer % 2 == 0 and layer < most else "full_attention"
            for layer in range(layers)
        ],
    )
    if len(kinds) != layers or not {*kinds} <= {"sliding_attention", "full_attention"}:
        raise ConfigError(
            f"config.json: layer_types does not name one known kind for each of {layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def experts(config: Config) -> ExpertLayout:
    def refs(layer: int, expert: int) -> ExpertRefs:
        name = f"model.layers.{layer}.mlp.experts.{expert}"
        return ExpertRefs(*(MatrixRef(f"{name}.{part}_proj") for part in ("gate", "up", "down")))

    return ExpertLayout(
        config.hidden, config.expert_intermediate, SILU, config.experts, config.sparse_layers, refs
    )


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
            bias=c.qkv_bias,
        )
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        self.router: SoftmaxRouter | None = None
        if index in c.sparse_layers:
            gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
            self.router = SoftmaxRouter(gate, c.experts_per_token, c.normalise)
            self.mlp = load.mlp(f"{name}.mlp.shared_expert", c.hidden, c.shared_intermediate, SILU)
            self.shared_gate = load.linear(f"{name}.mlp.shared_expert_gate", 1, c.hidden, exact=True)
        else:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, SILU)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        c, count = self.config, len(batch)
        q, k, v = self.qkv(self.attention_norm(x))
        q = rotary.turn(q.reshape(count, c.heads, c.head_dim), angles)
        k = rotary.turn(k.reshape(count, c.kv_heads, c.head_dim), angles)
        v = v.reshape(count, c.kv_heads, c.head_dim)
        seen = attend(
            batch, batch.parts(self.index), q, k, v, scale=c.head_dim**-0.5, window=c.windows[self.index]
        )
        return x + self.output(seen)

    def feed(self, x: F32, experts: Experts) -> F32:
        rows = self.feed_norm(x)
        if self.router is None:
            return x + self.mlp(rows)
        shared = sigmoid(self.shared_gate(rows)) * self.mlp(rows)
        return x + (experts(self.index, rows, *self.router(rows)) + shared)

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        if self.router is not None:
            experts.prefetch(self.index, self.router(self.feed_norm(x))[0])


class Qwen2Moe(Model):
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
        return State([KeyValue([width, width], self.cache_dtype, window) for window in self.config.windows])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotary.angles(batch.positions)
        for layer in self.layers:
            x = layer.attend(x, batch, self.rotary, angles)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(self.norm(batch.select(x)))


FAMILY = Family("Qwen2-MoE", ("qwen2_moe",), parse, experts, Qwen2Moe, verified=("bf16",))
