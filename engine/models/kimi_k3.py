"""Kimi K3 (arXiv 2607.24653), text only: Kimi Linear's layers with bounded decay, gated latent attention,
experts that work on a latent of the hidden state, and attention over depth in place of residual sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.config import Reader, text_part
from engine.decoder import Frame
from engine.delta import DeltaShape, KimiDelta
from engine.experts import ExpertLayout, ExpertRefs, Experts
from engine.kernels import Activation, sigmoid, softmax
from engine.latent import LatentAttention, LatentShape
from engine.layers import Linear, Norm
from engine.loader import Loader
from engine.models import Batch, Family, beyond
from engine.models.kimi_linear import linear_layers, sparse_layers
from engine.router import SigmoidRouter

WHOLE, TEXT = "language_model.", ""  # before the names of the text model in a multimodal release, and alone
TOWERS = ("vision_tower.", "mm_projector.", "model.vision_tower.", "model.mm_projector.")


@dataclass(frozen=True, slots=True)
class Config:
    latent: LatentShape
    delta: DeltaShape
    linear: tuple[bool, ...]  # by layer: delta or latent attention
    sparse_layers: tuple[int, ...]
    decay_bound: float | None
    full_rank_gate: bool  # of delta attention
    output_gate: bool  # of latent attention
    block: int | None  # layers that are summed up to one entry of the attention over depth
    hidden: int
    intermediate: int  # of dense layers
    expert_hidden: int | None  # width of the latent that experts work on
    expert_norm: bool
    expert_intermediate: int
    activation: Activation
    layers: int
    attention_bias: bool
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
        hidden_act=("situ", "silu"),
        moe_layer_freq=1,
        moe_router_activation_func="sigmoid",
        topk_method="noaux_tc",
        mla_use_nope=True,
    )
    delta = read.part("linear_attn_config")
    hidden, layers = read.count("hidden_size"), read.count("num_hidden_layers")
    experts = read.count("num_experts", "num_local_experts", "n_routed_experts")
    return Config(
        latent=latent_shape(read, hidden),
        delta=delta_shape(delta),
        linear=linear_layers(read, delta, layers),
        sparse_layers=sparse_layers(read, layers),
        decay_bound=delta.number("gate_lower_bound", default=None),
        full_rank_gate=delta.flag("use_full_rank_gate", default=False),
        output_gate=read.flag("mla_use_output_gate", default=False),
        block=optional(read, "attn_res_block_size"),
        hidden=hidden,
        intermediate=read.count("intermediate_size"),
        expert_hidden=optional(read, "routed_expert_hidden_size"),
        expert_norm=read.flag("latent_moe_use_norm", default=False),
        expert_intermediate=read.count("moe_intermediate_size"),
        activation=feed_activation(read),
        layers=layers,
        attention_bias=read.flag("attention_bias", default=False),
        experts=experts,
        experts_per_token=read.count("num_experts_per_token", "num_experts_per_tok", most=experts),
        shared_experts=read.count("num_shared_experts", "n_shared_experts", default=1, least=0),
        normalise=read.flag("moe_renormalize", "norm_topk_prob", default=True),
        routing_scale=read.number("routed_scaling_factor", default=1.0),
        groups=read.divisor("num_expert_group", "n_group", of=experts, default=1),
        groups_kept=read.count("topk_group", default=1),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        vocabulary=read.count("vocab_size"),
        context=read.count("model_max_length", "max_position_embeddings", default=1 << 20),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def optional(read: Reader, key: str) -> int | None:
    """A count that need not be given."""
    return read.count(key) if key in read else None


def latent_shape(read: Reader, hidden: int) -> LatentShape:
    """The shape of latent attention."""
    return LatentShape(
        hidden=hidden,
        heads=read.count("num_attention_heads"),
        q_rank=optional(read, "q_lora_rank"),
        kv_rank=read.count("kv_lora_rank"),
        nope=read.count("qk_nope_head_dim"),
        rope=read.count("qk_rope_head_dim", default=0, least=0),
        value=read.count("v_head_dim"),
    )


def delta_shape(delta: Reader) -> DeltaShape:
    """The shape of delta attention, from `linear_attn_config`."""
    heads, head_dim = delta.count("num_heads"), delta.count("head_dim")
    return DeltaShape(heads, heads, head_dim, head_dim, delta.count("short_conv_kernel_size", default=4))


def feed_activation(read: Reader) -> Activation:
    """The activation of dense layers and experts."""
    if read.text("hidden_act", default="situ") == "silu":
        return Activation("silu")
    return Activation(
        "situ",
        beta=read.number("activation_situ_beta", default=4.0),
        limit=read.number("activation_situ_linear_beta", default=0.0),
    )


def experts(config: Config) -> ExpertLayout:
    def refs(prefix: str, layer: int, expert: int) -> ExpertRefs:
        return ExpertRefs.within(
            f"{prefix}model.layers.{layer}.block_sparse_moe.experts.{expert}", ("w1", "w3", "w2")
        )

    return ExpertLayout(
        config.expert_hidden or config.hidden,
        config.expert_intermediate,
        config.activation,
        config.experts,
        config.sparse_layers,
        partial(refs, WHOLE),
        [partial(refs, TEXT)],
    )


class Depth:
    """Attention over depth (arXiv 2603.15031): a softmax over what earlier blocks of layers summed up to, and
    the block under way, says in what proportion they are mixed. Scores see the entries normed; the mix not.

    GGUF files have the norm's weights and the projection as their product."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        if f"{name}_score.weight" in load:
            self.norm = Norm(np.ones(config.hidden, np.float32), config.epsilon)
            self.score: Linear = load.folded(load.vector(f"{name}_score", config.hidden)[None], exact=True)
        else:
            self.norm = Norm(load.vector(f"{name}_norm", config.hidden), config.epsilon)
            self.score = load.linear(f"{name}_proj", 1, config.hidden, exact=True)

    def __call__(self, blocks: list[F32], running: F32) -> F32:
        """Entries [N, hidden], the first one oldest -> [N, hidden]."""
        if not blocks:
            return running
        entries = [*blocks, running]
        shares = softmax(np.concatenate([self.score(self.norm(entry)) for entry in entries], 1))
        mixed = entries[0] * shares[:, :1]
        for index, entry in enumerate(entries[1:], 1):
            mixed += entry * shares[:, index : index + 1]
        return mixed


class Latent:
    """Latent attention without positions, its output gated by a sigmoid."""

    def __init__(self, config: Config, load: Loader, name: str) -> None:
        s, bias = config.latent, config.attention_bias
        width = s.heads * s.value
        self.attention = LatentAttention(load, name, s, bias=bias)
        self.gate = load.linear(f"{name}.g_proj", width, config.hidden) if config.output_gate else None
        self.output = load.linear(f"{name}.o_proj", config.hidden, width, bias=bias)

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        """The memory of this layer for one sequence."""
        return self.attention.new_part(dtype)

    def __call__(self, x: F32, batch: Batch, parts: list[Any]) -> F32:
        self.attention.write(x, batch, parts, None, None)
        seen = self.attention.seen(self.attention.query(x, None, None), batch, parts)
        return self.output(seen if self.gate is None else seen * sigmoid(self.gate(x)))


class Sparse:
    """Experts on a latent of the rows, beside shared experts on the rows themselves."""

    def __init__(self, config: Config, load: Loader, name: str, index: int) -> None:
        c = config
        self.index = index
        correction = load.vector(f"{name}.gate.e_score_correction_bias", c.experts)
        gate = load.linear(f"{name}.gate", c.experts, c.hidden, exact=True)
        self.router = SigmoidRouter(
            gate, c.experts_per_token, correction, c.normalise, c.routing_scale, c.groups, c.groups_kept
        )
        self.down = self.up = self.norm = None
        if c.expert_hidden is not None:
            self.down = load.linear(f"{name}.routed_expert_down_proj", c.expert_hidden, c.hidden)
            self.up = load.linear(f"{name}.routed_expert_up_proj", c.hidden, c.expert_hidden)
            if c.expert_norm:
                self.norm = Norm(load.vector(f"{name}.routed_expert_norm", c.expert_hidden), c.epsilon)
        shared = c.expert_intermediate * c.shared_experts
        self.shared = load.mlp(f"{name}.shared_experts", c.hidden, shared, c.activation) if shared else None

    def __call__(self, rows: F32, experts: Experts) -> F32:
        routed = experts.begin(self.index, rows if self.down is None else self.down(rows), *self.router(rows))
        always = None if self.shared is None else self.shared(rows)
        out = routed()
        if self.norm is not None:
            out = self.norm(out)
        if self.up is not None:
            out = self.up(out)
        return out if always is None else out + always


class Layer:
    def __init__(self, config: Config, load: Loader, name: str, index: int) -> None:
        c = config
        self.index = index
        self.opens = c.block is not None and index % c.block == 0
        self.before_attention = self.before_feed = None
        if c.block is not None:
            self.before_attention = Depth(c, load, f"{name}.self_attention_res")
            self.before_feed = Depth(c, load, f"{name}.mlp_res")
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.mixer: KimiDelta | Latent = (
            KimiDelta(
                load,
                f"{name}.self_attn",
                c.hidden,
                c.delta,
                c.epsilon,
                bound=c.decay_bound,
                full_rank=c.full_rank_gate,
            )
            if c.linear[index]
            else Latent(c, load, f"{name}.self_attn")
        )
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        self.sparse: Sparse | None = None
        if index in c.sparse_layers:
            self.sparse = Sparse(c, load, f"{name}.block_sparse_moe", index)
        else:
            self.mlp = load.mlp(f"{name}.mlp", c.hidden, c.intermediate, c.activation)

    def attend(self, blocks: list[F32], x: F32, batch: Batch) -> F32:
        """x: the sum of the block under way; a layer that opens a block puts it to the others and starts anew."""
        mixed = x if self.before_attention is None else self.before_attention(blocks, x)
        new = self.mixer(self.attention_norm(mixed), batch, batch.parts(self.index))
        if self.opens:
            blocks.append(x)
            return new
        return x + new

    def _rows(self, blocks: list[F32], x: F32) -> F32:
        return self.feed_norm(x if self.before_feed is None else self.before_feed(blocks, x))

    def feed(self, blocks: list[F32], x: F32, experts: Experts) -> F32:
        rows = self._rows(blocks, x)
        return x + (self.mlp(rows) if self.sparse is None else self.sparse(rows, experts))

    def guess(self, blocks: list[F32], x: F32, experts: Experts) -> None:
        """Announces the experts that rows like these would go to."""
        if self.sparse is not None:
            experts.prefetch(self.index, self.sparse.router(self._rows(blocks, x))[0])


class KimiK3(Frame[Layer]):
    def __init__(self, config: Config, load: Loader) -> None:
        prefix = WHOLE if f"{WHOLE}model.embed_tokens.weight" in load else TEXT
        name = f"{prefix}model"
        self.at_last = None if config.block is None else Depth(config, load, f"{name}.output_attn_res")

        def layer(index: int) -> Layer:
            return Layer(config, load, f"{name}.layers.{index}", index)

        super().__init__(config, load, layer, base=name, head=f"{prefix}lm_head")

    def new_state(self) -> State:
        return State([layer.mixer.new_part(self.cache_dtype) for layer in self.layers])

    def run(self, batch: Batch, experts: Experts) -> F32:
        x = self.embedding(batch.tokens)
        blocks: list[F32] = []
        for layer in self.layers:
            x = layer.attend(blocks, x, batch)
            if experts.looks_ahead and layer.index + 1 < len(self.layers):
                self.layers[layer.index + 1].guess(blocks, x, experts)
            x = layer.feed(blocks, x, experts)
        if self.at_last is not None:
            x = self.at_last(blocks, x)
        return self.head(batch.select(x), self.norm)


FAMILY = Family(
    "Kimi K3",
    ("kimi_k3",),
    parse,
    experts,
    KimiK3,
    skips=lambda config, name: name.startswith(TOWERS) or beyond(name.removeprefix(WHOLE), config.layers),
    verified=("mxfp4",),
)
