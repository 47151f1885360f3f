"""What GGUF files call models, settings and tensors, in the words of Hugging Face checkpoints.

One `Architecture` a name in `general.architecture`: the model type it is, how its metadata reads as a config.json, and
what its tensors are called (`names`). Whatever a file says of its architecture beyond that is refused, for it could
change the answers. To add one, write it down in `ARCHITECTURES`; the family itself stays in engine/models.

What the formats' converters do to the weights is undone by `Tensors`: experts of a layer are one tensor, which is
given as one tensor an expert; and in the architecture "llama", whose rotary embedding turns neighbouring dimensions,
the rows of q and k are in another order (see `TensorInfo.interleaved_heads`). What they change in some architectures
alone is told in the files named after these.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.config import MOST, Reader
from engine.errors import CheckpointError, ConfigError, UnknownFamily
from engine.experts import MOST_EXPERTS
from engine.gguf import (
    deepseek_v3,
    deepseek_v4,
    glm5_next,
    glm_moe_dsa,
    hy_v3,
    kimi_k3,
    kimi_linear,
    qwen3_5_moe,
    qwen3_next,
)
from engine.gguf.header import Tensor
from engine.gguf.names import (
    ATTENTION,
    DEEPSEEK,
    DENSE,
    GLM4,
    GPT_OSS,
    HEAD_NORMS,
    MINIMAX,
    MIXTRAL,
    SHARED,
    SPARSE,
    WHOLE,
)
from engine.gguf.rope import rotary, share
from engine.safetensors import TensorInfo

# Settings read for every architecture, and settings that say nothing of the answers.
COMMON = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "expert_feed_forward_length",
    "attention.layer_norm_rms_epsilon", "expert_count", "expert_used_count", "expert_gating_func",
    "expert_weights_norm", "expert_weights_scale", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned", "vocab_size",
    "attention.causal",
)  # fmt: skip
GATING = {"softmax": 1, "sigmoid": 2, "softmax of the chosen": 3, "sqrtsoftplus": 4}
MOST_EXPERT_TENSORS = 6 * MOST_EXPERTS  # three matrices, and their biases
SOFTMAX, SIGMOID = ("softmax",), ("sigmoid",)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Architecture:
    """One architecture: its model type, its tensors, what its metadata means beyond the common settings."""

    model_type: str
    names: Mapping[
        str, str
    ]  # of a layer's tensors without "blk.N.", and without the suffix where both have it
    settings: Sequence[str] = ()  # keys beyond COMMON
    extra: Callable[["Facts"], Settings] = field(default=lambda facts: {})
    gating: Sequence[str] = SOFTMAX
    interleaved: bool = False  # rows of q and k are in the order of llama.cpp's rotary embedding
    turned: str = "whole"  # heads are turned as a whole, in "part", or are the heads of "latent" attention
    scaled: bool = False  # the weights of experts are multiplied by expert_weights_scale
    outside: Mapping[str, str] = field(default_factory=lambda: WHOLE)  # names of tensors outside of layers
    prefix: str = "model.layers"  # before a layer's number


class Facts:
    """The metadata and tensors of one file, as `Architecture.extra` reads them."""

    def __init__(self, name: str, read: Reader, tensors: Mapping[str, Tensor]) -> None:
        self.name = name
        self.read = read
        self.tensors = tensors
        self.layers = self.count("block_count", most=MOST["num_hidden_layers"]) - self.count(
            "nextn_predict_layers", default=0, least=0
        )

    def key(self, setting: str) -> str:
        """The key of one of the architecture's settings."""
        return f"{self.name}.{setting}"

    def has(self, setting: str) -> bool:
        """Whether the file says so."""
        return self.key(setting) in self.read

    def count(self, setting: str, **options: int) -> int:
        """A whole number; see `Reader.count`."""
        return self.read.count(self.key(setting), **options)

    def require(self, setting: str, *values: object) -> None:
        """Refuses any other value; absence passes."""
        self.read.refuse(**{self.key(setting): values})

    def shared_width(self) -> int:
        """Rows of a shared expert, which older files say by its tensors alone."""
        gate = self.tensors.get("blk.0.ffn_gate_shexp.weight")
        width = {} if gate is None else {"default": gate.shape[0]}
        return self.count("expert_shared_feed_forward_length", **width)

    def by_layer(self, setting: str) -> list[Any]:
        """Numbers or truth values, one a layer; what the list has for further layers is left out. ConfigError."""
        value = self.read.values.get(self.key(setting))
        if not isinstance(value, list) or len(value) < self.layers or any(type(i) is str for i in value):
            raise ConfigError(
                f"{self.read.where}: {self.key(setting)} is no list with a number for each of {self.layers} layers"
            )
        return value[: self.layers]

    def anywhere(self, part: str) -> bool:
        """Whether any layer has such a tensor."""
        return len(self.layers_without(part)) < self.layers

    def layers_without(self, part: str) -> list[int]:
        """The layers that have no such tensor."""
        return [layer for layer in range(self.layers) if f"blk.{layer}.{part}.weight" not in self.tensors]


def _qwen2(facts: Facts) -> Settings:
    return {
        "shared_expert_intermediate_size": facts.shared_width(),
        "qkv_bias": "blk.0.attn_q.bias" in facts.tensors,
        "norm_topk_prob": False,
        "mlp_only_layers": facts.layers_without("ffn_gate_inp"),
    }


def _qwen3(facts: Facts) -> Settings:
    return {"norm_topk_prob": True, "mlp_only_layers": facts.layers_without("ffn_gate_inp")}


def _olmoe(facts: Facts) -> Settings:
    clip = facts.read.number(facts.key("attention.clamp_kqv"), default=0.0)
    return {"norm_topk_prob": False, "clip_qkv": clip or None}


def _mixtral(facts: Facts) -> Settings:
    window = facts.count("attention.sliding_window", default=0, least=0)
    return {"sliding_window": window or None}


def _gpt_oss(facts: Facts) -> Settings:
    return {"sliding_window": facts.count("attention.sliding_window"), "attention_bias": True}


def _glm4(facts: Facts) -> Settings:
    return {
        **deepseek_v3.routing(facts),
        "attention_bias": "blk.0.attn_q.bias" in facts.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in facts.tensors,
    }


def _minimax(facts: Facts) -> Settings:
    facts.require("expert_weights_norm", True)
    return {}


LATENT = partial(Architecture, gating=SIGMOID, turned="latent", scaled=True)

ARCHITECTURES: Mapping[str, Architecture] = {
    "olmoe": Architecture(
        "olmoe", {**ATTENTION, **HEAD_NORMS, **DENSE, **SPARSE}, ("attention.clamp_kqv",), _olmoe
    ),
    "qwen3moe": Architecture("qwen3_moe", {**ATTENTION, **HEAD_NORMS, **DENSE, **SPARSE}, (), _qwen3),
    "qwen2moe": Architecture(
        "qwen2_moe",
        {**ATTENTION, **DENSE, **SPARSE, **SHARED},
        ("expert_shared_feed_forward_length",),
        _qwen2,
    ),
    "qwen3next": Architecture(
        "qwen3_next", qwen3_next.NAMES, qwen3_next.SETTINGS, qwen3_next.settings, turned="part"
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe", qwen3_5_moe.NAMES, qwen3_5_moe.SETTINGS, qwen3_5_moe.settings, turned="part"
    ),
    "llama": Architecture(
        "mixtral", {**ATTENTION, **MIXTRAL}, ("attention.sliding_window",), _mixtral, interleaved=True
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        {**ATTENTION, **SPARSE, **GPT_OSS},
        ("attention.sliding_window",),
        _gpt_oss,
        ("softmax", "softmax of the chosen"),
    ),
    "glm4moe": Architecture(
        "glm4_moe", GLM4, deepseek_v3.ROUTING, _glm4, SIGMOID, turned="part", scaled=True
    ),
    "minimax-m2": Architecture("minimax_m2", MINIMAX, (), _minimax, SIGMOID, turned="part"),
    "deepseek2": LATENT("deepseek_v3", DEEPSEEK, deepseek_v3.SETTINGS, deepseek_v3.settings),
    "kimi-linear": LATENT("kimi_linear", kimi_linear.NAMES, kimi_linear.SETTINGS, kimi_linear.settings),
    "kimi-k3": LATENT("kimi_k3", kimi_k3.NAMES, kimi_k3.SETTINGS, kimi_k3.settings, outside=kimi_k3.OUTSIDE),
    "glm5-next": LATENT(
        "glm5_next",
        glm5_next.NAMES,
        glm5_next.SETTINGS,
        glm5_next.settings,
        outside=glm5_next.OUTSIDE,
        prefix=f"{glm5_next.PREFIX}.layers",
    ),
    "glm-dsa": LATENT("glm_moe_dsa", glm_moe_dsa.NAMES, glm_moe_dsa.SETTINGS, glm_moe_dsa.settings),
    "deepseek32": LATENT("deepseek_v32", glm_moe_dsa.NAMES, glm_moe_dsa.SETTINGS, glm_moe_dsa.settings),
    "deepseek4": Architecture(
        "deepseek_v4",
        deepseek_v4.NAMES,
        deepseek_v4.SETTINGS,
        deepseek_v4.settings,
        ("sqrtsoftplus",),
        turned="part",
        scaled=True,
        outside=deepseek_v4.OUTSIDE,
        prefix="layers",
    ),
    "hy_v3": Architecture("hy_v3", hy_v3.NAMES, hy_v3.SETTINGS, hy_v3.settings, SIGMOID, scaled=True),
}


def architecture_of(path: str, metadata: Mapping[str, Any]) -> tuple[str, Architecture]:
    """The architecture a file names, and what is known of it. Raises UnknownFamily."""
    name = Reader(metadata, path).text("general.architecture")
    found = ARCHITECTURES.get(name)
    if found is None:
        raise UnknownFamily(
            f"{path}: the architecture {name[:80]!r} is not known; known in GGUF files are "
            f"{', '.join(sorted(ARCHITECTURES))}. Others can be run from their safetensors files"
        )
    return name, found


def config_of(path: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What would be the model's config.json. Raises ConfigError for what is not understood."""
    name, architecture = architecture_of(path, metadata)
    read = Reader(metadata, path)
    if name == "llama" and "llama.expert_count" not in read:
        raise UnknownFamily(f"{path} is a dense model of the kind Llama; of that kind only Mixtral is known")
    known = {f"{name}.{setting}" for setting in (*COMMON, *architecture.settings)}
    odd = [key for key in metadata if key.startswith(f"{name}.") and key not in known]
    if odd:
        raise ConfigError(
            f"{path} sets {odd[0]}, which is not understood; ignoring it could give wrong answers"
        )
    facts = Facts(name, read, tensors)
    facts.require("expert_gating_func", *(GATING[kind] for kind in architecture.gating))
    if not architecture.scaled:
        facts.require("expert_weights_scale", 0.0, 1.0)
    facts.require("attention.causal", True)
    heads, hidden = facts.count("attention.head_count"), facts.count("embedding_length")
    dim = facts.count("attention.key_length", default=max(1, hidden // heads))
    latent = architecture.turned == "latent"
    if not latent:
        facts.require("attention.value_length", dim)
    if architecture.turned == "whole":
        facts.require("rope.dimension_count", dim)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{path} has no token_embd.weight; it is not a whole text model")
    extra = dict(architecture.extra(facts))
    inner = facts.count("feed_forward_length", default=1, least=0)
    expert = facts.count("expert_feed_forward_length", default=max(1, inner))
    one_width = architecture.model_type in ("olmoe", "mixtral", "gpt_oss", "minimax_m2")
    if facts.has("expert_weights_norm"):
        extra["norm_topk_prob"] = read.flag(facts.key("expert_weights_norm"))
    return {
        "model_type": architecture.model_type,
        "hidden_size": hidden,
        "intermediate_size": expert if one_width else max(1, inner),
        "moe_intermediate_size": expert,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if latent else facts.count("attention.head_count_kv", default=heads),
        "head_dim": dim,
        "num_experts": facts.count("expert_count"),
        "num_local_experts": facts.count("expert_count"),
        "num_experts_per_tok": facts.count("expert_used_count"),
        "rms_norm_eps": read.number(facts.key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": facts.count("context_length"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "rope_parameters": {**rotary(facts), **(share(facts, dim) if architecture.turned == "part" else {})},
        **extra,
    }


PART = re.compile(r"blk\.(?P<layer>\d+)\.(?P<whole>(?P<part>.+?)(\.(?P<suffix>weight|bias))?)")


class Tensors:
    """Gives the tensors of files of one architecture the names that the family reads."""

    def __init__(self, path: str, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self._architecture = architecture_of(path, metadata)[1]
        self._config = config
        self._expert_tensors = 0

    def named(self, path: str, tensor: Tensor) -> list[TensorInfo]:
        """A tensor of the file `path` as the family knows it; one an expert if it holds many."""
        whole, _, suffix = tensor.name.rpartition(".")
        outside, names = self._architecture.outside, self._architecture.names
        if tensor.name in outside:
            return [_info(outside[tensor.name], path, tensor)]
        if whole in outside and suffix in ("weight", "bias"):
            return [_info(f"{outside[whole]}.{suffix}", path, tensor)]
        match = PART.fullmatch(tensor.name)
        prefix = f"{self._architecture.prefix}.{int(match['layer'])}" if match else ""
        if match and match["whole"] in names:
            return [_info(f"{prefix}.{names[match['whole']]}", path, tensor)]
        name = names.get(match["part"]) if match and match["suffix"] else None
        if match is None or name is None:
            raise CheckpointError(
                f"{path} has a tensor {tensor.name!r} that is not known in models of this architecture; "
                "ignoring it could give wrong answers"
            )
        suffix = match["suffix"]
        if match["part"] == "exp_probs_b":  # the bias is all there is of it
            suffix = "weight"
        if "{}" in name:
            return self._experts(f"{prefix}.{name}.{suffix}", path, tensor)
        if sides := _sides(match["part"], tensor.shape):
            return [_info(f"{prefix}.{name}.{suffix}", path, tensor, sides)]
        turned = self._architecture.interleaved and match["part"] in ("attn_q", "attn_k")
        heads = self._config["num_key_value_heads" if match["part"] == "attn_k" else "num_attention_heads"]
        if turned and tensor.shape[0] != heads * self._config["head_dim"]:
            raise CheckpointError(
                f"{path}: {tensor.name} has {tensor.shape[0]} rows, not {heads} whole heads"
            )
        return [_info(f"{prefix}.{name}.{suffix}", path, tensor, heads=heads if turned else 0)]

    def _experts(self, name: str, path: str, tensor: Tensor) -> list[TensorInfo]:
        count = self._config["num_experts"]
        if tensor.shape[0] != count or len(tensor.shape) < 2:
            raise CheckpointError(
                f"{path}: {tensor.name} has the shape {list(tensor.shape)}, not that of {count} experts"
            )
        self._expert_tensors += count
        if self._expert_tensors > MOST_EXPERT_TENSORS:
            raise CheckpointError(
                f"{path} has more than {MOST_EXPERT_TENSORS:,} matrices of experts, which is not believable"
            )
        each = tensor.nbytes // count
        return [
            _info(
                name.format(expert),
                path,
                Tensor(tensor.name, tensor.kind, tensor.shape[1:], tensor.offset + expert * each, each),
            )
            for expert in range(count)
        ]


def _sides(part: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape with the sides of 1 that checkpoints have, of tensors that come with more or fewer of them."""
    if part == "ffn_gate_inp_shexp" and len(shape) == 1:
        return (1, *shape)
    if part == "ssm_conv1d" and len(shape) == 2:
        return (shape[0], 1, shape[1])
    if part.startswith("ssm_conv1d_") and len(shape) == 4 and shape[0] == 1:
        return shape[1:]
    return None


def _info(
    name: str, path: str, tensor: Tensor, shape: tuple[int, ...] | None = None, heads: int = 0
) -> TensorInfo:
    """Blocks are bytes, a row a line; see `engine.formats.gguf`."""
    sides = shape or tensor.shape
    row = sides[-1] // tensor.kind.values * (tensor.kind.nbytes if tensor.kind.values > 1 else 1)
    return TensorInfo(name, tensor.kind.name, (*sides[:-1], row), path, tensor.offset, tensor.nbytes, heads)
