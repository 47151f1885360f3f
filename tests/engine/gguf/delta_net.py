"""What llama.cpp's converter makes of Qwen3-Next and of Qwen3.5-MoE; see the files of these names in engine/gguf."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.checkpoint import Checkpoint
from engine.config import text_part

ARCHITECTURES = ("qwen3next", "qwen35moe")
EXACT = re.compile(r"\.(ffn_gate_inp|ssm_conv1d)\.")  # in f32 whatever the format
PREDICTION = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}


def metadata(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings beyond what all architectures have, without the architecture's name."""
    rope = config.get("rope_parameters") or config
    turned = int(config["head_dim"] * rope["partial_rotary_factor"])
    found = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": config["full_attention_interval"],
        "rope.dimension_count": turned,
    }
    if name == "qwen35moe":
        ahead = config["mtp_num_hidden_layers"]
        found |= {
            "block_count": config["num_hidden_layers"] + ahead,
            "nextn_predict_layers": ahead,
            "rope.dimension_sections": [*rope["mrope_section"], 0],
        }
    return found


def converted(checkpoint: Checkpoint, name: str, names: Mapping[str, str]) -> dict[str, F32]:
    """All tensors of the file, by their names there, in f32. `names`: what checkpoints call them, by part."""
    config = text_part(checkpoint.config)
    back = {theirs: ours for ours, theirs in names.items()}
    experts: dict[str, list[F32]] = {}
    found: dict[str, F32] = {}
    for tensor in sorted(checkpoint.tensors, key=_numbers):
        if tensor.startswith("model.visual.") or (name == "qwen3next" and tensor.startswith("mtp.")):
            continue
        values = checkpoint.f32(tensor)
        place, part = _place(tensor, config["num_hidden_layers"])
        if match := re.fullmatch(r"mlp\.experts\.\d+\.(gate|up|down)_proj\.weight", part):
            experts.setdefault(f"{place}ffn_{match[1]}_exps.weight", []).append(values)
        elif part == "mlp.experts.gate_up_proj":
            gate, up = np.split(values, 2, 1)
            found |= {f"{place}ffn_gate_exps.weight": gate, f"{place}ffn_up_exps.weight": up}
        elif part == "mlp.experts.down_proj":
            found[f"{place}ffn_down_exps.weight"] = values
        else:
            tiles = name == "qwen35moe"
            found |= {f"{place}{ours}": new for ours, new in _changed(part, values, config, back, tiles)}
    return found | {ours: np.stack(values) for ours, values in experts.items()}


def _numbers(tensor: str) -> list[tuple[int, str]]:
    """Sorts experts by their number."""
    return [(int(word) if word.isdigit() else -1, word) for word in tensor.split(".")]


def _place(tensor: str, layers: int) -> tuple[str, str]:
    """What a tensor's name in the file begins with, and its name within the layer or the model."""
    tensor = tensor.replace("model.language_model.", "model.")
    if match := re.fullmatch(r"(model|mtp)\.layers\.(\d+)\.(.+)", tensor):
        return f"blk.{int(match[2]) + (layers if match[1] == 'mtp' else 0)}.", match[3]
    return (f"blk.{layers}.", tensor) if tensor.startswith("mtp.") else ("", tensor)


def _changed(
    part: str, values: F32, config: Mapping[str, Any], back: Mapping[str, str], tiles: bool
) -> Iterator[tuple[str, F32]]:
    """The tensors that one becomes, with their names within the layer."""
    module, _, suffix = part.rpartition(".")
    if part.startswith("mtp."):
        yield f"{PREDICTION[module[4:]]}.weight", values + 1 if "norm" in part else values
    elif module.endswith("norm") and module != "linear_attn.norm":
        yield f"{back[module]}.weight", values + np.float32(1)
    elif module == "linear_attn.in_proj_qkvz":
        key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
        shared = config["linear_num_value_heads"] // config["linear_num_key_heads"]
        by_head = values.reshape(config["linear_num_key_heads"], -1, values.shape[1])
        kinds = np.split(by_head, np.cumsum([key, key, shared * value]), 1)
        q, k, v, z = (kind.reshape(-1, values.shape[1]) for kind in kinds)
        yield from (("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z))
    elif module == "mlp.shared_expert_gate":
        yield f"{back[module]}.weight", values[0]
    elif part.startswith("linear_attn."):
        values = _tiled(part, values, config) if tiles else values
        match part.removeprefix("linear_attn."):
            case "A_log":
                yield "ssm_a", -np.exp(values)
            case "dt_bias":
                yield "ssm_dt.bias", values
            case "conv1d.weight":
                yield "ssm_conv1d.weight", values.squeeze(1)
            case _:
                yield f"{back[module]}.{suffix}", values
    else:
        yield f"{back[module]}.{suffix}", values


def _tiled(part: str, values: F32, config: Mapping[str, Any]) -> F32:
    """The value heads going through all key heads in turn, and no longer those of each key head in a row."""
    width, keys = config["linear_value_head_dim"], config["linear_num_key_heads"]
    before = 2 * keys * config["linear_key_head_dim"]

    def tile(some: F32, width: int) -> F32:
        return some.reshape(keys, -1, width, *some.shape[1:]).swapaxes(0, 1).reshape(some.shape)

    match part.removeprefix("linear_attn."):
        case "in_proj_qkv.weight" | "conv1d.weight":
            return np.concatenate([values[:before], tile(values[before:], width)])
        case "in_proj_z.weight":
            return tile(values, width)
        case "in_proj_a.weight" | "in_proj_b.weight" | "A_log" | "dt_bias":
            return tile(values, 1)
        case "out_proj.weight":
            return tile(values.T, width).T
        case _:
            return values
