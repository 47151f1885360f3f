"""gpt-oss (arXiv 2508.10925): sinks, a window on every second layer, biases everywhere, clamped experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import Reader
from engine.decoder import Decoder
from engine.errors import ConfigError
from engine.experts import ExpertLayout, ExpertRefs, MatrixRef
from engine.grouped import GroupedAttention, GroupedBlock
from engine.kernels import Activation
from engine.layers import Norm
from engine.loader import Loader
from engine.models import Family
from engine.rotary import RopeSettings, Rotary
from engine.router import SoftmaxRouter

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, slots=True)
class Config:
    hidden: int
    intermediate: int  # of an expert
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    windows: tuple[int | None, ...]  # by layer
    experts: int
    experts_per_token: int
    activation: Activation
    inputs_first: bool  # how the experts' matrices are stored: plain ones [in, out], MXFP4 ones [out, in]
    epsilon: float
    rope: RopeSettings
    vocabulary: int
    context: int
    tied: bool


def parse(config: Mapping[str, Any]) -> Config:
    scaled = bool(config.get("rope_scaling")) or config.get("rope_parameters") is not None
    read = Reader(config if scaled else {**config, "rope_scaling": YARN})
    read.refuse(hidden_act=("silu", "swish"))
    layers, heads = read.count("num_hidden_layers", default=36), read.count("num_attention_heads", default=64)
    usual = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    kinds = read.kinds("layer_types", layers, usual, ("sliding_attention", "full_attention"))
    if "sliding_attention" in kinds and config.get("sliding_window", 128) is None:
        raise ConfigError(f"{read.where}: there are layers of sliding attention, but sliding_window is null")
    window = read.count("sliding_window", default=128)
    context = read.count("max_position_embeddings", default=131072)
    return Config(
        hidden=read.count("hidden_size"),
        intermediate=read.count("intermediate_size", default=2880),
        layers=layers,
        heads=heads,
        kv_heads=read.divisor("num_key_value_heads", of=heads, default=8),
        head_dim=read.count("head_dim", default=64),
        attention_bias=read.flag("attention_bias", default=True),
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        experts=read.count("num_local_experts", "num_experts", default=128),
        experts_per_token=read.count("num_experts_per_tok", "experts_per_token", default=4),
        activation=Activation(
            "gpt_oss",
            limit=read.number("swiglu_limit", default=7.0),
            alpha=read.number("swiglu_alpha", default=1.702),
        ),
        inputs_first="quantization_config" not in read,
        epsilon=read.number("rms_norm_eps", default=1e-5),
        rope=RopeSettings.of(read, theta=150000.0, context=context),
        vocabulary=read.count("vocab_size", default=201088),
        context=context,
        tied=read.flag("tie_word_embeddings", default=False),
    )


def experts(config: Config) -> ExpertLayout:
    count, turned = config.intermediate, config.inputs_first

    def refs(layer: int, expert: int) -> ExpertRefs:
        name = f"model.layers.{layer}.mlp.experts"
        both, bias = f"{name}.gate_up_proj", f"{name}.gate_up_proj_bias"
        return ExpertRefs(  # gate and up alternate
            gate=MatrixRef(both, expert, 0, 2, count, turned),
            up=MatrixRef(both, expert, 1, 2, count, turned),
            down=MatrixRef(f"{name}.down_proj", expert, transposed=turned),
            gate_bias=MatrixRef(bias, expert, 0, 2, count),
            up_bias=MatrixRef(bias, expert, 1, 2, count),
            down_bias=MatrixRef(f"{name}.down_proj_bias", expert),
        )

    def separate(layer: int, expert: int) -> ExpertRefs:
        name = f"model.layers.{layer}.mlp.experts.{expert}"
        parts = [f"{name}.{part}_proj" for part in ("gate", "up", "down")]
        return ExpertRefs(
            *(MatrixRef(part) for part in parts), *(MatrixRef(f"{part}.bias") for part in parts)
        )

    return ExpertLayout(
        config.hidden,
        count,
        config.activation,
        config.experts,
        range(config.layers),
        refs,
        others=(separate,),  # where a GGUF file has them
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
        sinks = load.vector(f"{attention}.sinks", c.heads)
        self.attention = GroupedAttention(
            c.heads, c.kv_heads, c.head_dim, window=c.windows[index], sinks=sinks
        )
        self.output = load.linear(f"{attention}.o_proj", c.hidden, q_width, bias=c.attention_bias)
        self.feed_norm = Norm(load.vector(f"{name}.post_attention_layernorm", c.hidden), c.epsilon)
        gate = load.linear(f"{name}.mlp.router", c.experts, c.hidden, bias=True, exact=True)
        # A softmax over the chosen is a softmax over all, divided by the sum of the chosen.
        self.router = SoftmaxRouter(gate, c.experts_per_token, normalise=True)


def build(config: Config, load: Loader) -> Decoder:
    return Decoder(config, load, Layer, Rotary.of(config.rope, config.head_dim))


FAMILY = Family("gpt-oss", ("gpt_oss",), parse, experts, build, verified=("bf16", "mxfp4"))
