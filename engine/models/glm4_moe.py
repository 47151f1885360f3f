"""GLM-4.5 to 4.7 (arXiv 2508.06471): dense first layers, shared experts, sigmoid router within groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import Reader
from engine.decoder import Decoder
from engine.experts import ExpertLayout, mlp_experts
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import Activation
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Family, beyond
from engine.rotary import RopeSettings, Rotary
from engine.router import SigmoidRouter


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    dense_layers: int  # the first ones
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    shared_experts: int
    normalise: bool
    routing_scale: float
    groups: int
    groups_kept: int
    qk_norm: bool
    attention_bias: bool
    activation: Activation
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    # Released configurations say how much of a head is turned; where one does not, the reference takes half.
    read = Reader({"partial_rotary_factor": 0.5, **config})
    read.refuse(scoring_func="sigmoid", topk_method="noaux_tc")
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads", default=96)
    context = read.count("max_position_embeddings", default=131072)
    rope = RopeSettings.of(read, context=context)
    head_dim = read.count("head_dim", default=hidden // heads)
    experts = read.count("n_routed_experts", "num_local_experts", default=128)
    groups = read.divisor("n_group", of=experts, default=1)
    return Config(
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=10944),
        expert_intermediate=read.count("moe_intermediate_size", default=1408),
        layers=read.count("num_hidden_layers", default=46),
        dense_layers=read.count("first_k_dense_replace", default=1, least=0),
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=8),
        head_dim=head_dim,
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8),
        shared_experts=read.count("n_shared_experts", default=1, least=0),
        normalise=read.flag("norm_topk_prob", default=True),
        routing_scale=read.number("routed_scaling_factor", default=1.0),
        groups=groups,
        groups_kept=read.count("topk_group", default=1, most=groups),
        qk_norm=read.flag("use_qk_norm", default=False),
        attention_bias=read.flag("attention_bias", default=False),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=rope,
        vocabulary=read.count("vocab_size", default=151552),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    sparse = range(config.dense_layers, config.layers)
    return ExpertLayout(
        config.hidden, config.expert_intermediate, config.activation, config.experts, sparse, mlp_experts
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
            bias=c.attention_bias,
        )
        q_norm = k_norm = None
        if c.qk_norm:
            q_norm = Norm(load.vector(f"{attention}.q_norm", c.head_dim), c.epsilon)
            k_norm = Norm(load.vector(f"{attention}.k_norm", c.head_dim), c.epsilon)
        self.attention = GroupedAttention(c.heads, c.kv_heads, c.head_dim, q_norm, k_norm)
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        if index < c.dense_layers:
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


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim, config.rope.partial))


FAMILY = Family(
    "GLM-4.5",
    ("glm4_moe",),
    parse,
    experts,
    build,
    skips=lambda config, name: beyond(name, config.layers),
    verified=("bf16",),
)
