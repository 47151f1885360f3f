"""DeepSeek-V4: a window of recent tokens and compressed entries of all the others, in hyper-connected streams.

Keys are values: one head of both serves all heads of a query, and what its rotation adds is turned back in the
output. Layers of three kinds: "sliding" sees the last tokens alone, "heavily compressed" also an entry for every
128, "compressed sparse" also those entries of every 4 that an indexer, with smaller entries of its own, chose.
Experts are chosen by score, in the first layers by the token itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32, I32, joined
from engine.cache import KeyValue, Part, State
from engine.compressed import Compressor, Entries, WindowAndEntries, ropes
from engine.config import Reader
from engine.errors import CheckpointError, ConfigError
from engine.experts import ExpertLayout, ExpertRefs, Experts
from engine.hyper import HyperConnection, HyperHead, HyperShape
from engine.kernels import Activation, attention, inverse_rope, rms_norm
from engine.kernels.compress import join_places
from engine.kernels.heads import matmul_heads
from engine.kernels.indexer import choose_keys
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Batch, Family, Model
from engine.rotary import RopeSettings, Rotary
from engine.router import SCORES, ScoreRouter

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
SAVED = "model."  # before the names that transformers saves
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # how older configurations name the kinds


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    expert_intermediate: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int  # the last dimensions of a head, which are turned
    q_rank: int
    output_groups: int
    output_rank: int
    kinds: tuple[str, ...]  # by layer
    ratios: Mapping[str, int]  # tokens an entry, by kind
    window: int
    index_heads: int
    index_dim: int
    index_entries: int  # that a token sees at most
    hashed: tuple[bool, ...]  # by layer: experts chosen by the token
    score: str
    experts: int
    experts_per_token: int
    shared_bias: bool
    routing_scale: float
    activation: Activation
    hyper: HyperShape
    epsilon: float
    rope: RopeSettings  # of sliding layers
    entry_rope: RopeSettings  # of the others
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(config)
    read.refuse(num_key_value_heads=1, topk_method="noaux_tc")
    layers, experts = read.count("num_hidden_layers", default=43), read.count("n_routed_experts", default=256)
    head_dim, heads = read.count("head_dim", default=512), read.count("num_attention_heads", default=64)
    epsilon = read.number("rms_norm_eps", default=1e-6)
    hidden = read.count("hidden_size", default=4096)
    legacy = read.count("qk_rope_head_dim", default=0, least=0) / head_dim
    share = read.number("partial_rotary_factor", default=legacy or 64 / 512)
    context = read.count("max_position_embeddings", default=1048576)
    rope, entry_rope = ropes(read, share, context)
    rope_dim = 2 * len(entry_rope.frequencies(head_dim, entry_rope.partial))
    score = read.text("scoring_func", default="sqrtsoftplus")
    if score not in SCORES:
        raise ConfigError(
            f"config.json asks for scoring_func = {score!r}, which this family's reader does not know"
        )
    limit = read.number("swiglu_limit", default=10.0)
    return Config(
        hidden=hidden,
        expert_intermediate=read.count("moe_intermediate_size", default=2048),
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        rope_dim=rope_dim,
        q_rank=read.count("q_lora_rank", default=1024),
        output_groups=read.divisor("o_groups", of=heads * head_dim, default=8),
        output_rank=read.count("o_lora_rank", default=1024),
        kinds=layer_kinds(read, layers),
        ratios=entry_ratios(read),
        window=read.count("sliding_window", default=128),
        index_heads=read.count("index_n_heads", default=64),
        index_dim=read.count("index_head_dim", default=128, least=rope_dim),
        index_entries=read.count("index_topk", default=512),
        hashed=hashed_layers(read, layers),
        score=score,
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=6, most=experts),
        shared_bias=read.flag("mlp_bias", default=False),
        routing_scale=read.number("routed_scaling_factor", default=1.5),
        activation=activation_of(read, limit),
        hyper=HyperShape(
            hidden,
            streams=read.count("hc_mult", default=4),
            rounds=read.count("hc_sinkhorn_iters", default=20),
            floor=read.number("hc_eps", default=1e-6),
            epsilon=epsilon,
        ),
        epsilon=epsilon,
        rope=rope,
        entry_rope=entry_rope,
        vocabulary=read.count("vocab_size", default=129280),
        context=context,
        tied=read.flag("tie_word_embeddings", default=False),
    )


def layer_kinds(read: Reader, layers: int) -> tuple[str, ...]:
    """By layer: `layer_types`, or older `compress_ratios`, or heavy, heavy, and then both kinds in turn."""
    default = [HEAVY] * min(layers, 2) + [
        SPARSE if layer % 2 else HEAVY for layer in range(max(layers - 2, 0))
    ]
    if "compress_ratios" in read:
        default = [RATIOS.get(ratio, str(ratio)) for ratio in read.counts("compress_ratios")]
    return read.kinds("layer_types", layers, default, (SLIDING, SPARSE, HEAVY), longer=True)


def entry_ratios(read: Reader) -> dict[str, int]:
    """Tokens an entry, by kind of layer."""
    given = read.part("compress_rates") if "compress_rates" in read else Reader({}, read.where)
    sparse, heavy = given.count(SPARSE, default=4), given.count(HEAVY, default=128)
    return {
        SPARSE: read.count("compress_rate_csa", default=sparse),
        HEAVY: read.count("compress_rate_hca", default=heavy),
    }


def hashed_layers(read: Reader, layers: int) -> tuple[bool, ...]:
    """By layer, whether the token chooses the experts: `mlp_layer_types`, or the num_hash_layers first."""
    hashed = read.count("num_hash_layers", default=3, least=0)
    usual = ["hash_moe" if layer < hashed else "moe" for layer in range(layers)]
    kinds = read.kinds("mlp_layer_types", layers, usual, ("hash_moe", "moe"), longer=True)
    return tuple(kind == "hash_moe" for kind in kinds)


def named(name: str) -> ExpertRefs:
    """The matrices of a routed or shared expert."""
    return ExpertRefs.within(name, ("w1", "w3", "w2"))


def experts(config: Config) -> ExpertLayout:
    def refs(before: str, layer: int, expert: int) -> ExpertRefs:
        return named(f"{before}layers.{layer}.ffn.experts.{expert}")

    return ExpertLayout(
        config.hidden,
        config.expert_intermediate,
        config.activation,
        config.experts,
        range(config.layers),
        partial(refs, ""),
        others=(partial(refs, SAVED),),
    )


class Rotaries:
    """The rotation of one kind of layer: of heads and, with the same angles, of the indexer's smaller ones."""

    def __init__(self, config: Config, settings: RopeSettings) -> None:
        def turning(width: int) -> Rotary:
            frequencies = settings.frequencies(config.head_dim, settings.partial)
            first = width - config.rope_dim
            return Rotary(frequencies, settings.table_scale(), interleaved=True, first=first)

        self.heads, self.index = turning(config.head_dim), turning(config.index_dim)


class Indexer:
    """Chooses the entries that a layer's rows see, by entries of its own."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        c, heads, dim = config, config.index_heads, config.index_dim
        self.config = config
        self.query = load.linear(f"{name}.wq_b", heads * dim, c.q_rank)
        self.weights = load.linear(f"{name}.weights_proj", heads, c.hidden, exact=True)
        self.compressor = Compressor(
            load, f"{name}.compressor", c.hidden, dim, c.ratios[SPARSE], overlap=True, epsilon=c.epsilon
        )

    def new_parts(self, dtype: np.dtype[np.generic]) -> list[Part]:
        return [self.compressor.new_part(), Entries(self.config.index_dim, dtype, self.config.ratios[SPARSE])]

    def __call__(
        self,
        x: F32,
        source: F32,
        batch: Batch,
        raw: Sequence[KeyValue],
        parts: Sequence[Entries],
        rotary: Rotary,
    ) -> list[I32]:
        """x [N, hidden], source [N, q_rank]: by sequence the entries that its rows see, [n, k]."""
        c, count = self.config, len(batch)
        self.compressor(x, batch, raw, parts, rotary)
        q = self.query(source).reshape(count, c.index_heads, c.index_dim)
        q = rotary.turn(q, rotary.angles(batch.positions))
        weights = self.weights(x) * np.float32(c.index_heads**-0.5)
        return [
            choose_keys(
                q[rows], weights[rows], part.arrays[0], (batch.positions[rows] + 1) // part.ratio,
                c.index_entries, scale=c.index_dim**-0.5,
            )
            for part, rows in zip(parts, batch.slices, strict=True)
        ]  # fmt: skip


class Attention:
    """`first`: the first of the layer's parts in a state; see `new_parts` for their order."""

    def __init__(self, config: Config, load: Loader, index: int, rotaries: Rotaries, first: int) -> None:
        c, name = config, f"layers.{index}.attn"
        self.config, self.rotaries, self.first, self.kind = config, rotaries, first, config.kinds[index]
        self.down = load.stack([f"{name}.wq_a", f"{name}.wkv"], [c.q_rank, c.head_dim], c.hidden)
        self.q_norm = Norm(load.vector(f"{name}.q_norm", c.q_rank), c.epsilon)
        self.q = load.linear(f"{name}.wq_b", c.heads * c.head_dim, c.q_rank)
        kv_norm = f"{name}.norm" if f"{name}.norm.weight" in load else f"{name}.kv_norm"
        self.kv_norm = Norm(load.vector(kv_norm, c.head_dim), c.epsilon)
        self.sinks = load.vector(f"{name}.attn_sink", c.heads)
        width = c.heads * c.head_dim // c.output_groups
        inner = load.matrix(f"{name}.wo_a", c.output_groups * c.output_rank, width)
        self.output_groups = load.by_head(list(inner.reshape(c.output_groups, c.output_rank, width)))
        self.output = load.linear(f"{name}.wo_b", c.hidden, c.output_groups * c.output_rank)
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        if self.kind != SLIDING:
            sparse = self.kind == SPARSE
            self.compressor = Compressor(
                load, f"{name}.compressor", c.hidden, c.head_dim, c.ratios[self.kind], overlap=sparse,
                epsilon=c.epsilon,
            )  # fmt: skip
            self.indexer = Indexer(c, load, f"{name}.indexer") if sparse else None

    def new_parts(self, dtype: np.dtype[np.generic]) -> list[Part]:
        """Tokens (and entries), what the next entries are made of, and the same two of the indexer."""
        c = self.config
        if self.compressor is None:
            return [KeyValue([(1, c.head_dim)], dtype, c.window)]
        parts: list[Part] = [WindowAndEntries(c.head_dim, dtype, c.window, c.ratios[self.kind])]
        parts.append(self.compressor.new_part())
        return parts if self.indexer is None else [*parts, *self.indexer.new_parts(dtype)]

    def __call__(self, x: F32, batch: Batch) -> F32:
        """x [N, hidden] -> [N, hidden]."""
        c, count, rotary = self.config, len(batch), self.rotaries.heads
        angles = rotary.angles(batch.positions)
        source, kv = self.down(x)
        source = self.q_norm(source)
        q = rotary.turn(rms_norm(self.q(source).reshape(count, c.heads, c.head_dim), None, c.epsilon), angles)
        kv = rotary.turn(self.kv_norm(kv)[:, None], angles)
        parts = batch.parts(self.first)
        for part, rows in zip(parts, batch.slices, strict=True):
            part.write(int(batch.positions[rows.start]), kv[rows])
        if self.compressor is None:
            seen = [
                self._recent(part, q[rows], batch.positions[rows])
                for part, rows in zip(parts, batch.slices, strict=True)
            ]
        else:
            self.compressor(x, batch, batch.parts(self.first + 1), parts, rotary)
            chosen: Sequence[I32 | None] = [None] * len(parts)
            if self.indexer is not None:
                raw, entries = batch.parts(self.first + 2), batch.parts(self.first + 3)
                chosen = self.indexer(x, source, batch, raw, entries, self.rotaries.index)
            seen = [
                self._joint(part, q[rows], batch.positions[rows], choice)
                for part, rows, choice in zip(parts, batch.slices, chosen, strict=True)
            ]
        out = joined(seen)
        out = inverse_rope(out, *angles, interleaved=True, first=c.head_dim - c.rope_dim)
        grouped = matmul_heads(out.reshape(count, c.output_groups, -1), self.output_groups)
        return self.output(grouped.reshape(count, -1))

    def _recent(self, part: KeyValue, q: F32, positions: I32) -> F32:
        scale, rows = self.config.head_dim**-0.5, part.arrays[0]
        return attention(
            q, rows, rows, positions, scale=scale, start=part.start, window=part.window, sinks=self.sinks
        )

    def _joint(self, part: WindowAndEntries, q: F32, positions: I32, chosen: I32 | None) -> F32:
        visible = (positions + 1) // part.ratio
        places = join_places(positions, part.window, part.start, part.front, visible, chosen)
        scale, rows = self.config.head_dim**-0.5, part.array
        return attention(q, rows, rows, positions, scale=scale, sinks=self.sinks, keys=places)


def router(config: Config, load: Loader, name: str, *, hashed: bool) -> ScoreRouter:
    """The router of a layer; `hashed`: by a table from tokens to experts."""
    c = config
    logits = load.linear(name, c.experts, c.hidden, exact=True)
    table: I32 | None = None
    if hashed:
        table = load.integers(f"{name}.tid2eid", (c.vocabulary, c.experts_per_token)).astype(np.int32)
        if table.min() < 0 or table.max() >= c.experts:
            raise CheckpointError(f"{name}.tid2eid names experts beyond the {c.experts} there are")
    correction = None if hashed else load.vector(f"{name}.bias", c.experts)
    return ScoreRouter(logits, c.experts_per_token, SCORES[c.score], c.routing_scale, correction, table)


class Layer:
    def __init__(self, config: Config, load: Loader, index: int, rotaries: Rotaries, first: int) -> None:
        c, name = config, f"layers.{index}"
        self.index = index
        self.around_attention = HyperConnection(load, f"{name}.hc_attn", c.hyper)
        self.attention_norm = Norm(load.vector(f"{name}.attn_norm", c.hidden), c.epsilon)
        self.attention = Attention(c, load, index, rotaries, first)
        self.around_feed = HyperConnection(load, f"{name}.hc_ffn", c.hyper)
        self.feed_norm = Norm(load.vector(f"{name}.ffn_norm", c.hidden), c.epsilon)
        self.router = router(c, load, f"{name}.ffn.gate", hashed=c.hashed[index])
        shared = f"{name}.ffn.shared_experts"
        self.shared = load.mlp(
            shared, c.hidden, c.expert_intermediate, c.activation, named(shared), bias=c.shared_bias
        )

    def attend(self, streams: F32, batch: Batch) -> F32:
        rows, mix = self.around_attention(streams)
        return mix(streams, self.attention(self.attention_norm(rows), batch))

    def feed(self, streams: F32, batch: Batch, experts: Experts) -> F32:
        collapsed, mix = self.around_feed(streams)
        rows = self.feed_norm(collapsed)
        routed = experts.begin(self.index, rows, *self.router(rows, batch.tokens))
        always = self.shared(rows)
        return mix(streams, routed() + always)

    def guess(self, streams: F32, batch: Batch, experts: Experts) -> None:
        """Announces the experts that streams like these would go to."""
        rows = self.feed_norm(self.around_feed(streams)[0])
        experts.prefetch(self.index, self.router(rows, batch.tokens)[0])


class DeepseekV4(Model):
    def __init__(self, config: Config, load: Loader) -> None:
        c = self.config = config
        self.vocab_size, self.context_length = c.vocabulary, c.context
        saved = f"{SAVED}embed_tokens.weight" in load
        load = load.within(SAVED if saved else "")
        embedding, collapse = ("embed_tokens", "hc_head.hc") if saved else ("embed", "hc_head")
        self.embedding = load.embedding(embedding, c.vocabulary, c.hidden)
        recent, entries = Rotaries(c, c.rope), Rotaries(c, c.entry_rope)
        parts = {SLIDING: 1, HEAVY: 2, SPARSE: 4}
        firsts = np.cumsum([0, *(parts[kind] for kind in c.kinds)]).tolist()
        self.layers = [
            Layer(c, load, index, recent if kind == SLIDING else entries, first)
            for index, (kind, first) in enumerate(zip(c.kinds, firsts, strict=False))
        ]
        self.collapse = HyperHead(load, collapse, c.hyper)
        self.norm = Norm(load.vector("norm", c.hidden), c.epsilon)
        embedding = f"{SAVED if saved else ''}{embedding}"
        self.head = load.within("").head("head", embedding, c.vocabulary, c.hidden, tied=c.tied)
        self.resident_bytes = load.resident_bytes
        self.cache_dtype = load.cache_dtype

    def new_state(self) -> State:
        return State([part for layer in self.layers for part in layer.attention.new_parts(self.cache_dtype)])

    def run(self, batch: Batch, experts: Experts) -> F32:
        streams = self.config.hyper.enter(self.embedding(batch.tokens))
        for layer in self.layers:
            streams = layer.attend(streams, batch)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(streams, batch, experts)
            streams = layer.feed(streams, batch, experts)
        wanted = batch.select(streams)
        return self.head(self.norm(self.collapse(wanted)))


FAMILY = Family(
    "DeepSeek-V4",
    ("deepseek_v4",),
    parse,
    experts,
    DeepseekV4,
    skips=lambda config, name: name.startswith("mtp."),
    verified=("bf16", "mxfp4"),
)
