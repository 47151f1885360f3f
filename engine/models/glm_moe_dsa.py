"""GLM-5 (arXiv 2602.15763) and DeepSeek-V3.2 (arXiv 2512.02556): DeepSeek-V3's layers, but a token attends only
to the keys that an indexer chose.

The indexer has small keys of its own in a cache beside the latents; layers called "shared" have none and take
the choice of the layer before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32, I32
from engine.cache import KeyValue, State
from engine.config import Reader
from engine.decoder import FeedForward, Frame
from engine.errors import ConfigError
from engine.experts import ExpertLayout, Experts, mlp_experts
from engine.kernels import Activation, layer_norm
from engine.kernels.indexer import choose_keys
from engine.latent import LatentAttention, LatentShape
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Batch, Family, beyond
from engine.rotary import RopeSettings, Rotary
from engine.router import SigmoidRouter

# What DeepSeek-V3.2 leaves unsaid, where GLM-5 would mean something else.
DEEPSEEK = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8,
    "topk_group": 4, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "index_n_heads": 64,
}  # fmt: skip
INDEX_EPSILON = 1e-6  # of the norm of the indexer's keys, whatever rms_norm_eps says


@dataclass(frozen=True, slots=True)
class Config:
    latent: LatentShape
    q_rank: int
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    sparse: tuple[bool, ...]  # by layer: routed experts, or one dense MLP
    indexed: tuple[bool, ...]  # by layer: an indexer of its own, or the choice of the layer before
    index_heads: int
    index_dim: int
    index_keys: int  # that a token sees at most
    index_interleaved: bool
    attention_bias: bool
    scale: float  # of scores before the softmax
    experts: int
    experts_per_token: int
    shared_experts: int
    normalise: bool
    routing_scale: float
    groups: int
    groups_kept: int
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    usual = DEEPSEEK if config.get("model_type") == "deepseek_v32" else {}
    read = Reader({**usual, **{key: value for key, value in config.items() if value is not None}})
    read.refuse(moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", mlp_bias=False)
    read.refuse(rope_interleave=True, indexer_rope_interleave=not usual)
    layers = read.count("num_hidden_layers", default=78)
    context = read.count("max_position_embeddings", default=202752)
    rope = RopeSettings.of(read, context=context)
    latent = LatentShape(
        hidden=read.count("hidden_size", default=6144),
        heads=read.count("num_attention_heads", default=64),
        q_rank=read.count("q_lora_rank", default=2048),
        kv_rank=read.count("kv_lora_rank", default=512),
        nope=read.count("qk_nope_head_dim", default=192),
        rope=read.count("qk_rope_head_dim", default=64),
        value=read.count("v_head_dim", default=256),
    )
    experts = read.count("num_experts", "n_routed_experts", "num_local_experts", default=256)
    groups = read.divisor("n_group", of=experts, default=1)
    return Config(
        latent=latent,
        q_rank=latent.q_rank or 0,
        hidden=latent.hidden,
        intermediate=read.count("intermediate_size", default=12288),
        expert_intermediate=read.count("moe_intermediate_size", default=2048),
        layers=layers,
        sparse=sparse_layers(read, layers, dense=3),
        indexed=indexed_layers(read, layers),
        index_heads=read.count("index_n_heads", default=32),
        index_dim=read.count("index_head_dim", default=128, least=latent.rope),
        index_keys=read.count("index_topk", default=2048),
        index_interleaved=not usual,
        attention_bias=read.flag("attention_bias", default=False),
        scale=(latent.nope + latent.rope) ** -0.5 * rope.score_scale(),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8, most=experts),
        shared_experts=read.count("n_shared_experts", default=int("n_shared_experts" not in config), least=0),
        normalise=read.flag("norm_topk_prob", default=True),
        routing_scale=read.number("routed_scaling_factor", default=2.5),
        groups=groups,
        groups_kept=read.count("topk_group", default=1, most=groups),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size", default=154880),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def sparse_layers(read: Reader, layers: int, dense: int) -> tuple[bool, ...]:
    """By layer, whether it has routed experts: `mlp_layer_types`, or all but the first_k_dense_replace first."""
    dense = read.count("first_k_dense_replace", default=dense, least=0)
    usual = ["sparse" if layer >= dense else "dense" for layer in range(layers)]
    kinds = read.kinds("mlp_layer_types", layers, usual, ("dense", "sparse"))
    return tuple(kind == "sparse" for kind in kinds)


def indexed_layers(read: Reader, layers: int) -> tuple[bool, ...]:
    """By layer, whether it has an indexer of its own: `indexer_types`, or a pattern, or every freq-th layer."""
    frequency = read.count("index_topk_freq", default=1)
    offset = read.count("index_skip_topk_offset", default=2, least=0)
    default = ["shared" if max(layer - offset + 1, 0) % frequency else "full" for layer in range(layers)]
    pattern = read.values.get("index_topk_pattern")
    if isinstance(pattern, str):
        default = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif pattern is not None:
        default = list(read.texts("index_topk_pattern"))
    kinds = read.kinds("indexer_types", layers, default, ("full", "shared"))
    return tuple(kind == "full" for kind in kinds)


def experts(config: Config) -> ExpertLayout:
    sparse = [layer for layer, has_experts in enumerate(config.sparse) if has_experts]
    return ExpertLayout(
        config.hidden, config.expert_intermediate, config.activation, config.experts, sparse, mlp_experts
    )


class Indexer:
    """Chooses the positions that a layer's rows see."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        c, heads, dim = config, config.index_heads, config.index_dim
        self.config = config
        self.query = load.linear(f"{name}.wq_b", heads * dim, c.q_rank)
        self.key = load.linear(f"{name}.wk", dim, c.hidden)
        self.key_weight = load.vector(f"{name}.k_norm.weight", dim)
        self.key_bias = load.vector(f"{name}.k_norm.bias", dim)
        self.weights = load.linear(f"{name}.weights_proj", heads, c.hidden, exact=True)

    def __call__(
        self,
        x: F32,
        source: F32,
        batch: Batch,
        parts: Sequence[KeyValue],
        rotary: Rotary,
        angles: tuple[F32, F32],
    ) -> list[I32 | None]:
        """x [N, hidden], source [N, q_rank]: by sequence the positions its rows see, None where they see all."""
        c, count = self.config, len(batch)
        key = layer_norm(self.key(x), self.key_weight, self.key_bias, INDEX_EPSILON)
        key = rotary.turn(key[:, None], angles)[:, 0]
        for part, rows in zip(parts, batch.slices, strict=True):
            part.write(int(batch.positions[rows.start]), key[rows])
        seen = [batch.positions[rows] + np.int32(1) for rows in batch.slices]
        if max(int(counts[-1]) for counts in seen) <= c.index_keys:
            return [None] * len(parts)
        q = rotary.turn(self.query(source).reshape(count, c.index_heads, c.index_dim), angles)
        weights = self.weights(x) * np.float32(c.index_heads**-0.5)
        return [
            None
            if counts[-1] <= c.index_keys
            else choose_keys(
                q[rows], weights[rows], part.arrays[0], counts, c.index_keys, scale=c.index_dim**-0.5
            )
            for part, rows, counts in zip(parts, batch.slices, seen, strict=True)
        ]


class Layer(FeedForward):
    def __init__(self, config: Config, load: Loader, index: int) -> None:
        name = f"model.layers.{index}"
        c, s = config, config.latent
        self.index = index
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.attention = LatentAttention(load, f"{name}.self_attn", s, bias=c.attention_bias, scale=c.scale)
        self.output = load.linear(
            f"{name}.self_attn.o_proj", c.hidden, s.heads * s.value, bias=c.attention_bias
        )
        self.indexer = Indexer(c, load, f"{name}.self_attn.indexer") if c.indexed[index] else None
        self.index_part = c.layers + sum(c.indexed[:index])  # where its keys lie in a state
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        if not c.sparse[index]:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, c.activation)
        else:
            gate = load.linear(f"{name}.mlp.gate", c.experts, c.hidden, exact=True)
            correction = load.vector(f"{name}.mlp.gate.e_score_correction_bias", c.experts)
            self.router = SigmoidRouter(
                gate, c.experts_per_token, correction, c.normalise, c.routing_scale, c.groups, c.groups_kept
            )
            shared = c.expert_intermediate * c.shared_experts
            if shared:
                self.mlp = load.mlp(f"{name}.mlp.shared_experts", c.hidden, shared, c.activation)

    def attend(
        self,
        x: F32,
        batch: Batch,
        rotaries: Sequence[Rotary],
        angles: tuple[F32, F32],
        chosen: list[I32 | None],
    ) -> tuple[F32, list[I32 | None]]:
        """`chosen`: what the layer before attended to; returned is what this one did."""
        rotary, index_rotary = rotaries
        rows, parts = self.attention_norm(x), batch.parts(self.index)
        self.attention.write(rows, batch, parts, rotary, angles)
        query = self.attention.query(rows, rotary, angles)
        if self.indexer is not None:
            index_parts = batch.parts(self.index_part)
            chosen = self.indexer(rows, query.source, batch, index_parts, index_rotary, angles)
        return x + self.output(self.attention.seen(query, batch, parts, chosen)), chosen


class GlmMoeDsa(Frame[Layer]):
    def __init__(self, config: Config, load: Loader) -> None:
        if not config.indexed[0]:
            raise ConfigError(
                "config.json: indexer_types makes the first layer share, with no layer before it"
            )
        self.config = config
        self.rotaries = [
            Rotary.of(config.rope, config.latent.rope, interleaved=interleaved)
            for interleaved in (True, config.index_interleaved)
        ]
        self.switches_at = self.rotaries[0].switches_at
        super().__init__(config, load, partial(Layer, config, load))

    def new_state(self) -> State:
        latents = [layer.attention.new_part(self.cache_dtype) for layer in self.layers]
        keys = [KeyValue([(self.config.index_dim,)], self.cache_dtype) for own in self.config.indexed if own]
        return State([*latents, *keys])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        angles = self.rotaries[0].angles(batch.positions, batch.stretched)
        chosen: list[I32 | None] = []
        for layer in self.layers:
            x, chosen = layer.attend(x, batch, self.rotaries, angles, chosen)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(x, experts)
            x = layer.feed(x, experts)
        return self.head(batch.select(x), self.norm)


FAMILY = Family(
    "GLM-5",
    ("glm_moe_dsa", "deepseek_v32"),
    parse,
    experts,
    GlmMoeDsa,
    skips=lambda config, name: beyond(name, config.layers),
    verified=("bf16",),
)
