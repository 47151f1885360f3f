"""Inkling, text only: positions by a learned bias of distance and by short convolutions, windowed and global
layers of different heads, shared experts that join the routed ones' weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32, I32, joined
from engine.cache import KeyValue, Part, Running, State
from engine.config import Reader, text_part
from engine.delta import load_taps
from engine.experts import ExpertLayout, ExpertRefs, Experts, MatrixRef
from engine.kernels import Activation, log, log_sigmoid, sigmoid, softmax, topk
from engine.kernels.convolution import causal_convolution
from engine.layers import Norm, activation_of, attend
from engine.loader import Loader
from engine.models import Batch, Family, Model


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of a kind of layer; `window`: positions seen (None: all); `extent`: distances with a bias."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    extent: int

    @property
    def kv_width(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    heads: tuple[Heads, ...]  # by layer
    sparse_layers: tuple[int, ...]
    bias_rank: int
    scaling_floor: float | None  # positions from which on global layers sharpen their attention
    scaling_alpha: float
    taps: int
    experts: int
    experts_per_token: int
    shared_experts: int
    routing_scale: float
    width_multiplier: float  # muP: what final states are divided by
    activation: Activation
    epsilon: float
    vocabulary: int
    outputs: int  # rows of the output head that count
    context: int


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(text_part(config))
    for key in ("use_embed_norm", "use_gate_bias", "use_global_scale", "use_sconv", "shared_expert_sink"):
        read.refuse(**{key: True})
    read.refuse(q_bias=False, o_bias=False, norm_after_topk=True, gate_activation="sigmoid")
    read.refuse(final_logit_softcapping=(), tie_word_embeddings=False)
    layers, vocabulary = read.count("num_hidden_layers", default=66), read.count("vocab_size", default=201024)
    sized = "dense_intermediate_size" in read  # then intermediate_size is the experts'
    experts = read.count("n_routed_experts", "num_local_experts", default=256)
    whole = read.count("intermediate_size", default=24576)
    return Config(
        hidden=read.count("hidden_size"),
        intermediate=read.count("dense_intermediate_size") if sized else whole,
        expert_intermediate=whole if sized else read.count("moe_intermediate_size", default=3072),
        layers=layers,
        heads=layer_heads(read, layers),
        sparse_layers=sparse_layers(read, layers),
        bias_rank=read.count("d_rel", default=16),
        scaling_floor=read.number("log_scaling_n_floor", default=None),
        scaling_alpha=read.number("log_scaling_alpha", default=0.1),
        taps=read.count("sconv_kernel_size", "conv_kernel_size", default=4),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=6, most=experts),
        shared_experts=read.count("n_shared_experts", default=2),
        routing_scale=read.number("route_scale", default=8.0),
        width_multiplier=read.number("logits_mup_width_multiplier", default=24.0),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        vocabulary=vocabulary,
        outputs=min(vocabulary, read.count("unpadded_vocab_size", default=vocabulary)),
        context=read.count("model_max_length", "max_position_embeddings", default=131072),
    )


def layer_heads(read: Reader, layers: int) -> tuple[Heads, ...]:
    """The heads of each layer: windowed ones by `layer_types` or `local_layer_ids`, else five of six."""
    heads, window = (
        read.count("num_attention_heads", default=64),
        read.count("sliding_window_size", "sliding_window", default=512),
    )
    extent = read.count("rel_extent", default=1024)
    whole = Heads(
        heads,
        read.divisor("num_key_value_heads", of=heads, default=8),
        read.count("head_dim", default=128),
        None,
        extent,
    )
    heads = read.count("swa_num_attention_heads", default=64)
    kv_heads = read.divisor("swa_num_key_value_heads", of=heads, default=16)
    local = Heads(heads, kv_heads, read.count("swa_head_dim", default=128), window, window)
    usual = [layer for layer in range(layers) if (layer + 1) % 6]
    windowed = {*read.counts("local_layer_ids", default=usual)}
    usual_kinds = ["hybrid_sliding" if layer in windowed else "hybrid" for layer in range(layers)]
    kinds = read.kinds("layer_types", layers, usual_kinds, ("hybrid_sliding", "hybrid"))
    return tuple(local if kind == "hybrid_sliding" else whole for kind in kinds)


def sparse_layers(read: Reader, layers: int) -> tuple[int, ...]:
    """Which layers have experts: `mlp_layer_types`, or all but the first `dense_mlp_idx`."""
    dense = read.count("dense_mlp_idx", default=0, least=0)
    usual = ["dense" if layer < dense else "sparse" for layer in range(layers)]
    kinds = read.kinds("mlp_layer_types", layers, usual, ("dense", "sparse"))
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")


def alternating(both: str, down: str, count: int, index: int | None = None) -> ExpertRefs:
    """An MLP whose gate and up rows alternate in one tensor."""
    return ExpertRefs(
        gate=MatrixRef(both, index, 0, 2, count),
        up=MatrixRef(both, index, 1, 2, count),
        down=MatrixRef(down, index),
    )


def experts(config: Config) -> ExpertLayout:
    count = config.expert_intermediate

    def refs(layer: int, expert: int) -> ExpertRefs:
        name = f"model.llm.layers.{layer}.mlp.experts"
        return alternating(f"{name}.w13_weight", f"{name}.w2_weight", count, expert)

    return ExpertLayout(config.hidden, count, config.activation, config.experts, config.sparse_layers, refs)


class Mixing:
    """A short convolution that is added to what it reads; its tail is array `slot` of the layer's memory."""

    def __init__(self, load: Loader, name: str, width: int, taps: int, slot: int) -> None:
        self.taps = load_taps(load, [f"{name}.weight"], [width], taps)
        self.slot = slot

    def __call__(self, x: F32, batch: Batch, parts: list[Running]) -> F32:
        outputs = [
            causal_convolution(x[rows], self.taps, part.now[self.slot], part.after[self.slot])
            for part, rows in zip(parts, batch.slices, strict=True)
        ]
        mixed = joined(outputs)
        return x + mixed


class Attention:
    def __init__(self, config: Config, load: Loader, name: str, heads: Heads) -> None:
        c, h = config, heads
        q_width = h.heads * h.head_dim
        self.config, self.heads = config, heads
        self.qkvr = load.stack(
            [f"{name}.{part}" for part in ("wq_du", "wk_dv", "wv_dv", "wr_du")],
            [q_width, h.kv_width, h.kv_width, h.heads * c.bias_rank],
            c.hidden,
        )
        self.mix_keys = Mixing(load, f"{name}.k_sconv", h.kv_width, c.taps, 0)
        self.mix_values = Mixing(load, f"{name}.v_sconv", h.kv_width, c.taps, 1)
        self.q_norm = Norm(load.vector(f"{name}.q_norm", h.head_dim), c.epsilon)
        self.k_norm = Norm(load.vector(f"{name}.k_norm", h.head_dim), c.epsilon)
        profiles = load.tensor(f"{name}.rel_logits_proj.proj", (c.bias_rank, h.extent))
        self.bias = load.folded(profiles.T, exact=True)
        self.output = load.linear(f"{name}.wo_ud", c.hidden, q_width)

    def sharpness(self, positions: I32) -> F32 | None:
        """What scores of these positions are multiplied by, f32 [N, 1, 1]: grows with the logarithm of the
        position on global layers."""
        c = self.config
        if self.heads.window is not None or c.scaling_floor is None:
            return None
        grown = (positions + 1).astype(np.float32) / np.float32(c.scaling_floor)
        tau = np.float32(1.0) + np.float32(c.scaling_alpha) * log(np.maximum(grown, np.float32(1.0)))
        return tau[:, None, None]

    def __call__(self, x: F32, batch: Batch, caches: list[KeyValue], tails: list[Running]) -> F32:
        h, count = self.heads, len(x)
        q, k, v, r = self.qkvr(x)
        k, v = self.mix_keys(k, batch, tails), self.mix_values(v, batch, tails)
        q = self.q_norm(q.reshape(count, h.heads, h.head_dim))
        k = self.k_norm(k.reshape(count, h.kv_heads, h.head_dim))
        v = v.reshape(count, h.kv_heads, h.head_dim)
        bias = self.bias(r.reshape(count * h.heads, -1)).reshape(count, h.heads, h.extent)
        tau = self.sharpness(batch.positions)
        if tau is not None:
            q, bias = q * tau, bias * tau
        # q and k are normed, so their products grow with head_dim, not with its root.
        return self.output(attend(batch, caches, q, k, v, scale=1.0 / h.head_dim, window=h.window, bias=bias))


class Sparse:
    """Routed and shared experts, their weights a softmax over the log-sigmoids of the chosen and the shared."""

    def __init__(self, config: Config, load: Loader, name: str, index: int) -> None:
        c = config
        self.config, self.index = config, index
        self.logits = load.linear(f"{name}.gate", c.experts + c.shared_experts, c.hidden, exact=True)
        self.correction = load.vector(f"{name}.gate.bias", c.experts)
        self.scale: F32 = load.vector(f"{name}.gate.global_scale", 1) * np.float32(c.routing_scale)
        both, down = (f"{name}.shared_experts.shared_{part}_weight" for part in ("w13", "w2"))
        self.shared = [
            load.mlp(
                both,
                c.hidden,
                c.expert_intermediate,
                c.activation,
                alternating(both, down, c.expert_intermediate, expert),
            )
            for expert in range(c.shared_experts)
        ]

    def choose(self, logits: F32) -> I32:
        """The best experts: int32 [N, k]."""
        scores = sigmoid(np.ascontiguousarray(logits[:, : self.config.experts])) + self.correction
        return topk(scores, self.config.experts_per_token)[0]

    def __call__(self, rows: F32, experts: Experts) -> F32:
        c, logits = self.config, self.logits(rows)
        ids = self.choose(logits)
        chosen = np.take_along_axis(logits, ids.astype(np.intp), 1)
        joined = np.concatenate([chosen, logits[:, c.experts :]], 1)
        weights = softmax(log_sigmoid(joined)) * self.scale
        routed = experts.begin(self.index, rows, ids, np.ascontiguousarray(weights[:, : c.experts_per_token]))
        always = [
            weights[:, index : index + 1] * shared(rows)
            for index, shared in enumerate(self.shared, c.experts_per_token)
        ]
        out = routed()
        for one in always:
            out = out + one
        return out


class Dense:
    def __init__(self, config: Config, load: Loader, name: str) -> None:
        refs = alternating(f"{name}.w13_dn", f"{name}.w2_md", config.intermediate)
        self.mlp = load.mlp(name, config.hidden, config.intermediate, config.activation, refs)
        self.scale = load.vector(f"{name}.global_scale", 1)

    def __call__(self, rows: F32, experts: Experts) -> F32:
        return self.mlp(rows) * self.scale


class Layer:
    def __init__(self, config: Config, load: Loader, index: int) -> None:
        name, c = f"model.llm.layers.{index}", config
        self.index = index
        self.attention_norm = Norm(load.vector(f"{name}.attn_norm", c.hidden), c.epsilon)
        self.attention = Attention(c, load, f"{name}.attn", c.heads[index])
        self.mix_attention = Mixing(load, f"{name}.attn_sconv", c.hidden, c.taps, 2)
        self.feed_norm = Norm(load.vector(f"{name}.mlp_norm", c.hidden), c.epsilon)
        self.mlp: Sparse | Dense = (
            Sparse(c, load, f"{name}.mlp", index)
            if index in c.sparse_layers
            else Dense(c, load, f"{name}.mlp")
        )
        self.mix_feed = Mixing(load, f"{name}.mlp_sconv", c.hidden, c.taps, 3)

    def attend(self, x: F32, batch: Batch) -> F32:
        caches, tails = batch.parts(2 * self.index), batch.parts(2 * self.index + 1)
        return x + self.mix_attention(
            self.attention(self.attention_norm(x), batch, caches, tails), batch, tails
        )

    def feed(self, x: F32, batch: Batch, experts: Experts) -> F32:
        return x + self.mix_feed(self.mlp(self.feed_norm(x), experts), batch, batch.parts(2 * self.index + 1))

    def guess(self, x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        if isinstance(self.mlp, Sparse):
            experts.prefetch(self.index, self.mlp.choose(self.mlp.logits(self.feed_norm(x))))


class Inkling(Model):
    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self.vocab_size, self.context_length = config.outputs, config.context
        self.embedding = load.embedding("model.llm.embed", config.vocabulary, config.hidden)
        self.embedding_norm = Norm(load.vector("model.llm.embed_norm", config.hidden), config.epsilon)
        self.layers = [Layer(config, load, index) for index in range(config.layers)]
        self.norm = Norm(load.vector("model.llm.norm", config.hidden), config.epsilon)
        head = MatrixRef("model.llm.unembed", count=config.outputs)
        self.head = load.linear(head, config.outputs, config.hidden)
        self.resident_bytes = load.resident_bytes
        self.cache_dtype = load.cache_dtype

    def new_state(self) -> State:
        c = self.config
        parts: list[Part] = []
        for h in c.heads:
            widths = (h.kv_width, h.kv_width, c.hidden, c.hidden)
            parts.append(KeyValue([(h.kv_heads, h.head_dim)] * 2, self.cache_dtype, h.window))
            parts.append(Running([(c.taps - 1, width) for width in widths]))
        return State(parts)

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding_norm(self.embedding(batch.tokens))
        for layer in self.layers:
            x = layer.attend(x, batch)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, batch, experts)
        return self.head(self.norm(batch.select(x)) / np.float32(self.config.width_multiplier))


FAMILY = Family(
    "Inkling",
    ("inkling_mm_model",),
    parse,
    experts,
    Inkling,
    skips=lambda config, name: name.startswith(("model.visual.", "model.audio.", "model.mtp.")),
    verified=("bf16",),
)
