"""DeepSeek-V3 and R1 (arXiv 2412.19437), Kimi-K2 and K2.5: latent attention, dense first layers, groups of experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.cache import KeyValue
from engine.config import Reader, text_part
from engine.decoder import Block, Decoder
from engine.experts import ExpertLayout, ExpertRefs
from engine.kernels import Activation
from engine.latent import LatentAttention, LatentShape
from engine.layers import Norm, activation_of
from engine.loader import Loader
from engine.models import Batch, Family, beyond
from engine.rotary import RopeSettings, Rotary
from engine.router import SigmoidRouter

WHOLE = "language_model."  # before the names of the text model in a multimodal release (Kimi-K2.5)
TOWERS = ("vision_tower.", "mm_projector.", "multi_modal_projector.")


@dataclass(frozen=True, slots=True)
class Config:
    latent: LatentShape
    hidden: int
    intermediate: int  # of dense layers
    expert_intermediate: int
    layers: int
    dense_layers: int  # the first ones
    attention_bias: bool
    interleaved: bool
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
    config = text_part(config)
    read = Reader(config)
    read.refuse(moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc")
    hidden = read.count("hidden_size")
    context = read.count("max_position_embeddings", default=4096)
    rope = RopeSettings.of(read, context=context)
    ranked = "q_lora_rank" in read or "q_lora_rank" not in config  # null means a projection in one step
    latent = LatentShape(
        hidden=hidden,
        heads=read.count("num_attention_heads", default=128),
        q_rank=read.count("q_lora_rank", default=1536) if ranked else None,
        kv_rank=read.count("kv_lora_rank", default=512),
        nope=read.count("qk_nope_head_dim", default=128),
        rope=read.count("qk_rope_head_dim", default=64),
        value=read.count("v_head_dim", default=128),
    )
    experts = read.count("n_routed_experts", "num_local_experts", default=256)
    groups = read.divisor("n_group", of=experts, default=8)
    return Config(
        latent=latent,
        hidden=hidden,
        intermediate=read.count("intermediate_size", default=18432),
        expert_intermediate=read.count("moe_intermediate_size", default=2048),
        layers=read.count("num_hidden_layers", default=61),
        dense_layers=read.count("first_k_dense_replace", default=3, least=0),
        attention_bias=read.flag("attention_bias", default=False),
        interleaved=read.flag("rope_interleave", default="rope_interleave" not in config),
        scale=(latent.nope + latent.rope) ** -0.5 * rope.score_scale(),
        experts=experts,
        experts_per_token=read.count("num_experts_per_tok", default=8),
        shared_experts=read.count("n_shared_experts", default=int("n_shared_experts" not in config), least=0),
        normalise=read.flag("norm_topk_prob", default="norm_topk_prob" not in config),
        routing_scale=read.number("routed_scaling_factor", default=2.5),
        groups=groups,
        groups_kept=read.count("topk_group", default=4, most=groups),
        activation=activation_of(read),
        epsilon=read.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocabulary=read.count("vocab_size", default=129280),
        context=rope.context(context),
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    def refs(within: str, layer: int, expert: int) -> ExpertRefs:
        return ExpertRefs.within(f"{within}model.layers.{layer}.mlp.experts.{expert}")

    sparse = range(config.dense_layers, config.layers)
    alone, *wrapped = (partial(refs, within) for within in ("", WHOLE))
    return ExpertLayout(
        config.hidden, config.expert_intermediate, config.activation, config.experts, sparse, alone, wrapped
    )


class Layer(Block):
    def __init__(self, config: Config, load: Loader, index: int) -> None:
        name = f"model.layers.{index}"
        c, s = config, config.latent
        self.index = index
        self.attention_norm = Norm(load.vector(f"{name}.input_layernorm", c.hidden), c.epsilon)
        self.attention = LatentAttention(load, f"{name}.self_attn", s, bias=c.attention_bias, scale=c.scale)
        self.output = load.linear(
            f"{name}.self_attn.o_proj", c.hidden, s.heads * s.value, bias=c.attention_bias
        )
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

    def new_part(self, dtype: np.dtype[np.generic]) -> KeyValue:
        return self.attention.new_part(dtype)

    def attend(self, x: F32, batch: Batch, rotary: Rotary, angles: tuple[F32, F32]) -> F32:
        rows, parts = self.attention_norm(x), batch.parts(self.index)
        self.attention.write(rows, batch, parts, rotary, angles)
        seen = self.attention.seen(self.attention.query(rows, rotary, angles), batch, parts)
        return x + self.output(seen)


def build(config: Config, load: Loader) -> Decoder:
    if f"{WHOLE}model.norm.weight" in load:
        load = load.within(WHOLE)
    rotary = Rotary.of(config.rope, config.latent.rope, interleaved=config.interleaved)
    return Decoder(config, load, Layer, rotary)


def skips(config: Config, name: str) -> bool:
    """Multi-token prediction and vision."""
    return name.startswith(TOWERS) or beyond(name.removeprefix(WHOLE), config.layers)


FAMILY = Family(
    "DeepSeek-V3",
    ("deepseek_v3", "kimi_k2", "kimi_k25"),
    parse,
    experts,
    build,
    skips=skips,
    verified=("bf16", "fp8", "int4"),
)
