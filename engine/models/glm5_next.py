"""GLM-5.3-Flash: three layers of delta attention to one of sparse latent attention, in hyper-connected streams.

Neither kind turns keys by their positions. Sparse layers choose pools of tokens: an indexer scores one pooled key
for each complete pool, and the tokens of the pool still open are always seen. Layers called "shared" take the
choice of the sparse layer before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32, I32
from engine.cache import KeyValue, Part, State
from engine.compressed import Entries
from engine.config import Reader, text_part
from engine.decoder import FeedForward, Frame
from engine.delta import DeltaShape, KimiDelta
from engine.errors import ConfigError
from engine.experts import ExpertLayout, ExpertRefs, Experts
from engine.hyper import HyperConnection, HyperShape
from engine.kernels import Activation, layer_norm
from engine.kernels.compress import expand_pools, pool_windows
from engine.kernels.hyper import collapse
from engine.kernels.indexer import choose_keys
from engine.latent import LatentAttention, LatentShape
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Batch, Family, beyond
from engine.router import SigmoidRouter

PREFIX = "model.language_model."
INDEX_EPSILON = 1e-6  # of the norm of the indexer's keys, whatever rms_norm_eps says
LINEAR, SPARSE = "linear_attention", "indexed_attention"
SPELLINGS = {"full_attention": SPARSE, "deepseek_sparse_attention": SPARSE}  # of the kinds of layers
Choice = list[I32 | None]


@dataclass(frozen=True, slots=True)
class Config:
    latent: LatentShape
    delta: DeltaShape
    decay_bound: float | None
    hyper: HyperShape
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    linear: tuple[bool, ...]  # by layer: delta attention, or sparse attention
    sparse: tuple[bool, ...]  # by layer: routed experts, or one dense MLP
    indexed: tuple[bool, ...]  # by layer: sparse attention with an indexer of its own
    index_heads: int
    index_dim: int
    index_keys: int  # that a token sees at most, beside the open pool
    pool: int  # tokens
    attention_bias: bool
    activation: Activation  # of dense layers and shared experts
    experts: int
    experts_per_token: int
    shared_experts: int
    normalise: bool
    routing_scale: float
    groups: int
    groups_kept: int
    epsilon: float
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    read = Reader(text_part(config))
    read.refuse(
        moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", mhc=True,
        mla_use_nope=True, qk_rope_head_dim=0, index_kpool_compress=True,
    )  # fmt: skip
    pool, keys = pooling(read)
    layers, hidden = read.count("num_hidden_layers", default=45), read.count("hidden_size", default=4096)
    delta, bound = delta_shape(read)
    linear = linear_layers(read, layers)
    own = indexed_layers(read, layers)
    experts = read.count("n_routed_experts", "num_local_experts", "num_experts", default=288)
    groups = read.divisor("n_group", of=experts, default=1)
    epsilon = read.number("rms_norm_eps", default=1e-5)
    return Config(
        latent=latent_shape(read, hidden),
        delta=delta,
        decay_bound=bound,
        hyper=hyper_shape(read, hidden, epsilon),
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=12288),
        expert_intermediate=read.count("moe_intermediate_size", default=2048),
        layers=layers,
        linear=linear,
        sparse=sparse_layers(read, layers),
        indexed=tuple(not delta and full for delta, full in zip(linear, own, strict=True)),
        index_heads=read.count("index_n_heads", default=32),
        index_dim=read.count("index_head_dim", default=128),
        index_keys=keys,
        pool=pool,
        attention_bias=read.flag("attention_bias", default=False),
        activation=activation_of(read, activation_limit(read)),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8, most=experts),
        shared_experts=read.count("n_shared_experts", default=1, least=0),
        normalise=read.flag("norm_topk_prob", default=True),
        routing_scale=read.number("routed_scaling_factor", default=2.5),
        groups=groups,
        groups_kept=read.count("topk_group", default=1, most=groups),
        epsilon=epsilon,
        vocabulary=read.count("vocab_size", default=154880),
        context=read.count("max_position_embeddings", default=1 << 20),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def pooling(read: Reader) -> tuple[int, int]:
    """Tokens of a pool, and how many of them a token sees at most: whole pools."""
    pool = read.count("index_kpool", default=16)
    if pool > 1:
        read.refuse(index_kpool_always_select_tail=True)
    keys = read.count("index_topk", default=2048)
    if keys % pool:
        raise ConfigError(
            f"{read.where}: index_topk is {keys}; a multiple of index_kpool = {pool} is expected"
        )
    return pool, keys


def latent_shape(read: Reader, hidden: int) -> LatentShape:
    """The shape of sparse attention."""
    return LatentShape(
        hidden=hidden,
        heads=read.count("num_attention_heads", default=64),
        q_rank=read.count("q_lora_rank", default=1536),
        kv_rank=read.count("kv_lora_rank", default=512),
        nope=read.count("qk_nope_head_dim", default=256),
        rope=0,
        value=read.count("v_head_dim", default=256),
    )


def hyper_shape(read: Reader, hidden: int, epsilon: float) -> HyperShape:
    """The residual streams around each layer."""
    return HyperShape(
        hidden,
        streams=read.count("hc_mult", default=4),
        rounds=read.count("hc_sinkhorn_iters", default=20),
        floor=read.number("hc_eps", default=1e-6),
        epsilon=epsilon,
    )


def activation_limit(read: Reader) -> float:
    """Where activations are cut off."""
    limit = read.number("swiglu_limit", default=10.0)
    if limit <= 0.0:
        raise ConfigError(f"{read.where}: swiglu_limit is {limit:g}; a number above 0 is expected")
    return limit


def delta_shape(read: Reader) -> tuple[DeltaShape, float | None]:
    """The shape of delta attention and its decay's lower bound: from `linear_attn_config`, or keys beside it."""
    given = read.part("linear_attn_config") if "linear_attn_config" in read else Reader({}, read.where)
    heads = given.count("num_heads", default=read.count("linear_num_heads", default=64))
    width = given.count("head_dim", default=read.count("linear_head_dim", default=128))
    taps = given.count("short_conv_kernel_size", default=read.count("linear_conv_kernel_dim", default=4))
    unbounded = read.values.get("linear_lower_bound", -5.0) is None
    bound = None if unbounded else read.number("linear_lower_bound", default=-5.0)
    if "gate_lower_bound" in given.values:  # null there means unbounded, but for what safe_gate says
        bound = given.number("gate_lower_bound", default=None)
    if given.values and bound is None and given.flag("safe_gate", default=True):
        bound = -5.0
    return DeltaShape(heads, heads, width, width, taps, activation=activation_of(read)), bound


def linear_layers(read: Reader, layers: int) -> tuple[bool, ...]:
    """By layer, whether it is delta attention: `layer_types`, or all but every fourth."""
    default = [SPARSE if layer % 4 == 3 else LINEAR for layer in range(layers)]
    return tuple(
        kind == LINEAR
        for kind in read.kinds("layer_types", layers, default, (LINEAR, SPARSE), spellings=SPELLINGS)
    )


def sparse_layers(read: Reader, layers: int) -> tuple[bool, ...]:
    """By layer, whether it has routed experts: `mlp_layer_types`, or all but the first three."""
    default = ["sparse" if layer >= 3 else "dense" for layer in range(layers)]
    kinds = read.kinds("mlp_layer_types", layers, default, ("dense", "sparse"), spellings=SPELLINGS)
    return tuple(kind == "sparse" for kind in kinds)


def indexed_layers(read: Reader, layers: int) -> tuple[bool, ...]:
    """By layer, whether it would choose for itself: `indexer_types`, or a pattern, or every freq-th layer."""
    frequency = read.count("index_topk_freq", default=1)
    offset = read.count("index_skip_topk_offset", default=2, least=0)
    default = ["shared" if max(layer - offset + 1, 0) % frequency else "full" for layer in range(layers)]
    pattern = read.values.get("index_topk_pattern")
    if isinstance(pattern, str):
        default = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif pattern is not None:
        default = list(read.texts("index_topk_pattern"))
    kinds = read.kinds("indexer_types", layers, default, ("full", "shared"), spellings=SPELLINGS)
    return tuple(kind == "full" for kind in kinds)


def experts(config: Config) -> ExpertLayout:
    def refs(layer: int, expert: int) -> ExpertRefs:
        return ExpertRefs.within(f"{PREFIX}layers.{layer}.mlp.experts.{expert}")

    sparse = [layer for layer, has_experts in enumerate(config.sparse) if has_experts]
    gating = Activation("clamped_silu", limit=config.activation.limit)  # whatever hidden_act says
    return ExpertLayout(config.hidden, config.expert_intermediate, gating, config.experts, sparse, refs)


class Indexer:
    """Chooses the positions that a layer's rows see, by pooled keys."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        c, heads, dim = config, config.index_heads, config.index_dim
        self.config = config
        self.query = load.linear(f"{name}.wq_b", heads * dim, c.latent.q_rank or 0)
        self.key = load.stack([f"{name}.wk", f"{name}.index_kpool_compress_gate"], [dim, dim], c.hidden)
        self.bias = load.tensor(f"{name}.index_kpool_compress_ape", (c.pool, dim))
        self.key_weight = load.vector(f"{name}.k_norm.weight", dim)
        self.key_bias = load.vector(f"{name}.k_norm.bias", dim)
        self.weights = load.linear(f"{name}.weights_proj", heads, c.hidden, exact=True)

    def new_parts(self, dtype: np.dtype[np.generic]) -> list[Part]:
        """Keys and gates of the pool that is open, and pooled keys."""
        c = self.config
        open_pool = KeyValue([(c.index_dim,), (c.index_dim,)], np.float32, window=c.pool)
        return [open_pool, Entries(c.index_dim, dtype, c.pool)]

    def __call__(
        self, x: F32, source: F32, batch: Batch, raw: Sequence[KeyValue], parts: Sequence[Entries]
    ) -> Choice:
        """x [N, hidden], source [N, q_rank]: by sequence the positions its rows see, None where they see all."""
        c, most = self.config, self.config.index_keys // self.config.pool
        keys, gates = self.key(x)
        keys = layer_norm(keys, self.key_weight, self.key_bias, INDEX_EPSILON)
        q = self.query(source).reshape(len(batch), c.index_heads, c.index_dim)
        weights = self.weights(x) * np.float32(c.index_heads**-0.5)
        choices: Choice = []
        for kept, part, rows in zip(raw, parts, batch.slices, strict=True):
            positions = batch.positions[rows]
            kept.write(int(positions[0]), keys[rows], gates[rows])
            first, last = int(positions[0]) // c.pool, (int(positions[-1]) + 1) // c.pool
            if last > first:
                held, scores = kept.arrays
                pooled = pool_windows(held, scores, self.bias, kept.start, first, last - first)
                part.write_entries(first, pooled)
            if last <= most:
                choices.append(None)
                continue
            complete = (positions + 1) // c.pool
            pools = choose_keys(
                q[rows], weights[rows], part.arrays[0], complete, most, scale=c.index_dim**-0.5
            )
            choices.append(expand_pools(pools, positions, c.pool))
        return choices


class SparseAttention:
    """Latent attention to chosen positions. `chosen` holds what the sparse layer before attended to."""

    def __init__(self, config: Config, load: Loader, name: str, *, indexed: bool) -> None:
        s, bias = config.latent, config.attention_bias
        self.attention = LatentAttention(load, name, s, bias=bias, epsilon=config.epsilon)
        self.output = load.linear(f"{name}.o_proj", config.hidden, s.heads * s.value, bias=bias)
        self.indexer = Indexer(config, load, f"{name}.indexer") if indexed else None

    def new_parts(self, dtype: np.dtype[np.generic]) -> list[Part]:
        own = [] if self.indexer is None else self.indexer.new_parts(dtype)
        return [self.attention.new_part(dtype), *own]

    def __call__(self, x: F32, batch: Batch, first: int, chosen: Choice) -> F32:
        """x [N, hidden] -> [N, hidden]; the layer's parts are `first` … of each state."""
        parts = batch.parts(first)
        self.attention.write(x, batch, parts, None, None)
        query = self.attention.query(x, None, None)
        if self.indexer is not None:
            chosen[:] = self.indexer(x, query.source, batch, batch.parts(first + 1), batch.parts(first + 2))
        return self.output(self.attention.seen(query, batch, parts, chosen))


class Layer(FeedForward):
    """`first`: the first of the layer's parts in a state."""

    def __init__(self, config: Config, load: Loader, index: int, first: int) -> None:
        c, name = config, f"{PREFIX}layers.{index}"
        self.index, self.first = index, first
        self.around_attention = HyperConnection(load, f"{name}.hc_attn", c.hyper)
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.mixer: KimiDelta | SparseAttention
        if c.linear[index]:
            self.mixer = KimiDelta(
                load, f"{name}.self_attn", c.hidden, c.delta, c.epsilon, bound=c.decay_bound
            )
        else:
            self.mixer = SparseAttention(c, load, f"{name}.self_attn", indexed=c.indexed[index])
        self.around_feed = HyperConnection(load, f"{name}.hc_ffn", c.hyper)
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

    def new_parts(self, dtype: np.dtype[np.generic]) -> list[Part]:
        return (
            [self.mixer.new_part(dtype)] if isinstance(self.mixer, KimiDelta) else self.mixer.new_parts(dtype)
        )

    def attend(self, streams: F32, batch: Batch, chosen: Choice) -> F32:
        collapsed, mix = self.around_attention(streams)
        rows = self.attention_norm(collapsed)
        if isinstance(self.mixer, KimiDelta):
            return mix(streams, self.mixer(rows, batch, batch.parts(self.first)))
        return mix(streams, self.mixer(rows, batch, self.first, chosen))

    def feed(self, streams: F32, experts: Experts) -> F32:
        collapsed, mix = self.around_feed(streams)
        return mix(streams, self.transform(collapsed, experts))

    def guess(self, streams: F32, experts: Experts) -> None:
        """Announces the experts that streams like these would go to."""
        if self.router is not None:
            rows = self.feed_norm(self.around_feed(streams)[0])
            experts.prefetch(self.index, self.router(rows)[0])


class Glm5Next(Frame[Layer]):
    def __init__(self, config: Config, load: Loader) -> None:
        c = self.config = config
        indexed = [own for delta, own in zip(c.linear, c.indexed, strict=True) if not delta]
        if indexed and not indexed[0]:
            raise ConfigError(
                "config.json: indexer_types makes the first sparse layer share; none is before it"
            )
        firsts = np.cumsum([0, *(3 if own else 1 for own in c.indexed)]).tolist()
        super().__init__(c, load, lambda index: Layer(c, load, index, firsts[index]), base=PREFIX.rstrip("."))

    def new_state(self) -> State:
        return State([part for layer in self.layers for part in layer.new_parts(self.cache_dtype)])

    def run(self, batch: Batch, experts: Experts) -> F32:
        streams = self.config.hyper.enter(self.embedding(batch.tokens))
        chosen: Choice = [None] * len(batch.segments)
        for layer in self.layers:
            streams = layer.attend(streams, batch, chosen)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(streams, experts)
            streams = layer.feed(streams, experts)
        wanted, count = batch.select(streams), self.config.hyper.streams
        mean = np.full((len(wanted), count), 1 / count, np.float32)
        return self.head(self.norm(collapse(wanted, mean)))


def skips(config: Config, name: str) -> bool:
    """Vision, and layers past the last."""
    return name.startswith("model.visual.") or beyond(name.replace(PREFIX, "model."), config.layers)


FAMILY = Family("GLM-5.3", ("glm5_next",), parse, experts, Glm5Next, skips, verified=("bf16",))
