"""Writes GGUF files for tests: from the reference folders, in any of the formats the engine reads, or by hand.

What the usual converters do to the weights is done here too: all experts of a layer become one tensor, and for
"llama" the rows of q and k are put in the order of its rotary embedding. llama.cpp reads these files (make_gguf.py).
"""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.arrays import F32
from engine.checkpoint import Checkpoint
from engine.config import text_part
from engine.experts import MatrixRef
from engine.formats import Groups, f32_to_bf16, round_q4, round_q8
from engine.gguf.architectures import ARCHITECTURES
from engine.gguf.header import BOOLEAN, KINDS, STRING, TABLES
from engine.models import family_of
from engine.source import DirectorySource
from engine.weights import Shelf
from tests.engine.gguf import delta_net
from tests.engine.gguf.converters import (
    CHANGED,
    EXACT,
    METADATA,
    changed,
    latent,
    routing,
    widened,
    with_another_head,
)

NUMBERS = {kind.name: number for number, kind in {**KINDS, **TABLES}.items()}
BY_MODEL_TYPE = {found.model_type: name for name, found in ARCHITECTURES.items()}
LATENT = ("deepseek2", "kimi-linear", "kimi-k3", "glm-dsa", "glm5-next", "deepseek32")
OTHERWISE = {
    ("glm4moe", "ffn_norm"),
    *((name, "post_attention_norm") for name in LATENT),
}  # names that the converter does not use
U32, F32_VALUE, ARRAY = 4, 6, 9
BLOCK = 32


def text(value: str) -> bytes:
    """A text as the format has it: length, UTF-8."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """A metadata value with its type."""
    match value:
        case bool():
            return struct.pack("<IB", BOOLEAN, value)
        case int():
            return struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", F32_VALUE, value)
        case str():
            return struct.pack("<I", STRING) + text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(text, value))
        case [bool(), *_]:
            return struct.pack("<IIQ", ARRAY, BOOLEAN, len(value)) + bytes(value)
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", ARRAY, F32_VALUE, len(value), *value)
        case _:
            values = np.asarray(value, np.int32)
            return struct.pack("<IIQ", ARRAY, 5, len(values)) + values.tobytes()


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]
) -> bytes:
    """A whole file: tensors are (format, shape outermost first, content)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items())
    body = b""
    for name, (kind, shape, content) in tensors.items():
        body += bytes(-len(body) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", NUMBERS[kind], len(body))
        body += content
    return head + bytes(-len(head) % 32) + body + bytes(-len(body) % 32)


def encoded(values: F32, kind: str) -> tuple[str, tuple[int, ...], bytes]:
    """Values in a format; in f32 where the format cannot hold them, as converters do."""
    if kind in ("Q8_0", "Q4_0") and values.shape[-1] % BLOCK:
        kind = "F32"
    if kind == "F32":
        return kind, values.shape, values.astype(np.float32).tobytes()
    if kind == "F16":
        return kind, values.shape, values.astype(np.float16).tobytes()
    if kind == "BF16":
        return kind, values.shape, f32_to_bf16(values).tobytes()
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return kind, values.shape, _blocks(round_q8(rows) if kind == "Q8_0" else round_q4(rows))


def _blocks(groups: Groups) -> bytes:
    codes = groups.codes.reshape(-1, BLOCK)
    scales = groups.scales.reshape(-1, 1)
    if groups.kind == "q8":
        return np.concatenate([scales.view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], 1).tobytes()
    if groups.kind == "mxfp4":
        code_points = np.searchsorted([0, 1, 2, 3, 4, 6, 8, 12], np.abs(codes)).astype(np.uint8)
        nibbles = code_points | np.where(codes < 0, 8, 0).astype(np.uint8)
        scale_bytes = scales.view(np.uint8).reshape(-1, 1)
    else:
        nibbles = (codes + 8).astype(np.uint8)
        scale_bytes = scales.view(np.uint8).reshape(-1, 2)
    return np.concatenate([scale_bytes, nibbles[:, :16] | (nibbles[:, 16:] << 4)], 1).tobytes()


def metadata_of(config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metadata of a configuration."""
    name = BY_MODEL_TYPE[config["model_type"]]
    config = text_part(config)
    heads = config["num_attention_heads"]
    inner = config.get("intermediate_size", 0)
    rope = config.get("rope_parameters") or config
    dim = config.get("head_dim") or config["hidden_size"] // heads
    found: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": inner,
        "expert_feed_forward_length": config.get("moe_intermediate_size", inner),
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]) if "rope_theta" in rope else None,
        "rope.dimension_count": dim,
        "expert_count": config.get("num_experts") or config.get("num_local_experts", 0),
        "expert_used_count": config.get("num_experts_per_tok"),
        "vocab_size": config["vocab_size"],
    }
    if shared := config.get("shared_expert_intermediate_size"):
        found["expert_shared_feed_forward_length"] = shared
    if name in delta_net.ARCHITECTURES:
        found |= delta_net.metadata(config, name)
    if name == "gpt-oss":
        found["attention.sliding_window"] = config["sliding_window"]
    if name in ("glm4moe", "deepseek2"):
        found |= routing(config)
    if name == "glm4moe":
        found["rope.dimension_count"] = int(dim * config["partial_rotary_factor"])
    if name == "minimax-m2":
        found |= {"expert_gating_func": 2, "rope.dimension_count": config["rotary_dim"]}
    if name == "deepseek2":
        found |= latent(config)
    if name in METADATA:
        found |= METADATA[name](config)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("mscale_all_dim"):
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
    if "yarn" in (scaling.get("rope_type"), scaling.get("type")):
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.factor"] = float(scaling["factor"])
        found["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
        betas = [beta for beta in ("beta_fast", "beta_slow") if beta in scaling]
        found |= {f"rope.scaling.yarn_{beta}": float(scaling[beta]) for beta in betas}
    return {
        "general.architecture": name,
        **{f"{name}.{key}": value for key, value in found.items() if value is not None},
        **(tokenizer or {"tokenizer.ggml.model": "none"}),
    }


def tokenizer_of(folder: Path, pre: str) -> dict[str, Any]:
    """A folder's tokenizer and template as metadata; `pre` is the name of its way to cut words."""
    definition = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    vocabulary = definition["model"]["vocab"]
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = [f"[PAD{ident}]" for ident in range(size)]
    kinds = [5] * size
    for token, ident in vocabulary.items():
        tokens[ident], kinds[ident] = token, 1
    for added in definition["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = 3 if added["special"] else 4
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in definition["model"]["merges"]]
    ends = generation["eos_token_id"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": ends[0],
        "tokenizer.ggml.eot_token_id": ends[-1],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }


def tensors_of(folder: Path, kind: str, **changes: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """A folder's tensors, its matrices in this format, norms, biases and routers in f32.

    Experts that a folder has in MXFP4 stay so. `changes` replace parts of the configuration.
    """
    checkpoint = Checkpoint.open(DirectorySource(folder))
    shelf = Shelf(checkpoint)
    original, config = config_of(folder, {}), config_of(folder, changes)
    name = BY_MODEL_TYPE[config["model_type"]]
    family = family_of(config)
    parsed = family.parse(config)
    layout = family.experts(parsed)
    names = {**ARCHITECTURES[name].names, **ARCHITECTURES[name].outside}
    if name in delta_net.ARCHITECTURES:
        return {
            ours: encoded(values, "F32" if values.ndim == 1 or delta_net.EXACT.search(ours) else kind)
            for ours, values in delta_net.converted(checkpoint, name, names).items()
        }
    back = {hf: ours for ours, hf in names.items() if (name, ours) not in OTHERWISE} | CHANGED
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for tensor in checkpoint.tensors:
        match = re.fullmatch(
            r"(?:language_model\.)?(?:(?:model\.(?:language_model\.)?)?layers\.(\d+)\.)?(.+)", tensor
        )
        assert match is not None
        if ".experts." in tensor or family.skips(parsed, tensor):
            continue
        place = f"blk.{match[1]}." if match[1] else ""
        stem, suffix = (match[2], "") if match[2] in back else match[2].rpartition(".")[::2]
        if stem.endswith("tid2eid"):
            table = checkpoint.integers(tensor).astype(np.int32)
            found[f"{place}{back[stem]}"] = ("I32", table.shape, table.tobytes())
            continue
        if suffix == "scale":
            continue
        info = checkpoint.info(tensor)
        if info.dtype == "F8_E4M3":
            values = shelf.matrix(MatrixRef(tensor.removesuffix(".weight")), *info.shape).f32()
        else:
            values = checkpoint.f32(tensor)
        if "index_head_dim" in changes:
            values = widened(tensor, values, original["index_head_dim"])
        if "linear_attn_config" in changes:
            delta = original["linear_attn_config"]
            values = with_another_head(tensor, values, delta["num_heads"], delta["head_dim"])
        if stem.endswith("_res_proj"):
            values = values[0] * checkpoint.f32(tensor.replace("_res_proj", "_res_norm"))
        if stem == "self_attn.kv_b_proj":
            by_head = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, rest = by_head[:, : config["qk_nope_head_dim"]], by_head[:, config["qk_nope_head_dim"] :]
            found[f"{place}attn_k_b.weight"] = encoded(keys.swapaxes(1, 2).copy(), kind)
            found[f"{place}attn_v_b.weight"] = encoded(rest.copy(), kind)
            continue
        if stem not in back:
            continue
        ours = back[stem]
        if ours == "ssm_g" and int(match[1]) + 1 in config["linear_attn_config"]["full_attn_layers"]:
            ours = "attn_gate"
        if name == "llama" and ours in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if ours == "attn_q" else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        values = values[0] if ours == "ffn_gate_inp_shexp" else values
        values = changed(ours, values, config["num_attention_heads"])
        if ours == "exp_probs_b" and name != "hy_v3":
            suffix = "bias"
        ours = f"{ours}.{suffix}" if suffix else ours
        plain = values.ndim == 1 or ours.removesuffix(".weight") in EXACT
        found[f"{place}{ours}"] = encoded(values, "F32" if plain else kind)
    for layer in layout.layers:
        refs = [layout.refs(layer, expert) for expert in range(layout.experts_per_layer)]
        for part in ("gate", "up", "down"):
            size = (layout.intermediate, layout.hidden)[:: -1 if part == "down" else 1]
            stored = [shelf.matrix(getattr(ref, part), *size) for ref in refs]
            place = f"blk.{layer}.ffn_{part}_exps"
            groups = [matrix.groups() for matrix in stored]
            if groups[0] is not None and groups[0].kind == "mxfp4":
                content = b"".join(_blocks(group) for group in groups if group is not None)
                found[f"{place}.weight"] = ("MXFP4", (len(stored), *size), content)
            else:
                found[f"{place}.weight"] = encoded(np.stack([matrix.f32() for matrix in stored]), kind)
            biases = [getattr(ref, f"{part}_bias") for ref in refs]
            if biases[0] is not None:
                vectors = np.stack([shelf.vector(bias, size[0]) for bias in biases])
                found[f"{place}.bias"] = encoded(vectors, "F32")
    return found


def config_of(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A folder's configuration with changes, that of the text model if there are others."""
    config = json.loads((folder / "config.json").read_text())
    return {**config.pop("text_config", {}), **config, **changes}


def write_folder(folder: Path, kind: str, path: Path, pre: str | None = None, **changes: Any) -> None:
    """A reference folder as a GGUF file; `pre`: with its tokenizer. `changes` replace parts of the configuration."""
    config = config_of(folder, changes)
    tokenizer = None if pre is None else tokenizer_of(folder, pre)
    path.write_bytes(gguf_bytes(metadata_of(config, tokenizer), tensors_of(folder, kind, **changes)))
