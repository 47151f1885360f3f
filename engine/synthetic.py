"""Models of real shapes whose weights are made up as they are read: for measuring, without a disk full of
weights.

A `SyntheticSource` looks like a directory with config.json and one safetensors file. Norms are ones;
matrices are bfloat16 values from a normal distribution with deviation 0.02, taken from one block of random
numbers at a place that depends on the tensor's name. So the same bytes come every time, and no two tensors
are alike.
"""

import bisect
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from blake3 import blake3

from engine.errors import SettingsError

DEVIATION = 0.02
BLOCK_BYTES = 1 << 24
BF16_ONE = 0x3F80

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "olmoe-1b-7b": {
        "model_type": "olmoe",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": 50304,
        "tie_word_embeddings": False,
        "eos_token_id": 50279,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "eos_token_id": 151645,
    },
}


def preset(
    name: str, experts: int | None = None, layers: int | None = None, context: int | None = None
) -> dict[str, Any]:
    """The configuration of a preset, with fewer experts or layers or another context if wanted.
    SettingsError."""
    if name not in PRESETS:
        raise SettingsError(f"{name!r} is no preset; there are {', '.join(PRESETS)}")
    config = dict(PRESETS[name])
    if experts is not None:
        if experts < config["num_experts_per_tok"]:
            raise SettingsError(
                f"each token goes to {config['num_experts_per_tok']} experts; {experts} are too few"
            )
        config["num_experts"] = experts
    if layers is not None:
        config["num_hidden_layers"] = layers
    if context is not None:
        config["max_position_embeddings"] = context
    return config


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of an OLMoE or Qwen3-MoE configuration with only sparse layers."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim", hidden // heads)
    q_width, kv_width = heads * dim, config["num_key_value_heads"] * dim
    per_head = config["model_type"] == "qwen3_moe"
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        found |= {
            f"{name}.input_layernorm.weight": (hidden,),
            f"{name}.self_attn.q_proj.weight": (q_width, hidden),
            f"{name}.self_attn.k_proj.weight": (kv_width, hidden),
            f"{name}.self_attn.v_proj.weight": (kv_width, hidden),
            f"{name}.self_attn.o_proj.weight": (hidden, q_width),
            f"{name}.self_attn.q_norm.weight": (dim if per_head else q_width,),
            f"{name}.self_attn.k_norm.weight": (dim if per_head else kv_width,),
            f"{name}.post_attention_layernorm.weight": (hidden,),
            f"{name}.mlp.gate.weight": (config["num_experts"], hidden),
        }
        for expert in range(config["num_experts"]):
            for part, shape in (
                ("gate", (inner, hidden)),
                ("up", (inner, hidden)),
                ("down", (hidden, inner)),
            ):
                found[f"{name}.mlp.experts.{expert}.{part}_proj.weight"] = shape
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


class SyntheticSource:
    """The files of a made-up model; see `engine.source.Source`."""

    FILE = "model.safetensors"

    def __init__(self, config: Mapping[str, Any], seed: int = 0) -> None:
        self.config = config
        self._json = json.dumps(config).encode()
        self._seed = seed
        values = (
            np.random.Generator(np.random.PCG64(seed)).standard_normal(BLOCK_BYTES // 2, np.float32)
            * DEVIATION
        )
        self._block = (values.view(np.uint32) >> 16).astype(np.uint16)
        header: dict[str, Any] = {}
        self._starts: list[int] = []
        self._kinds: list[int] = []  # −1 for ones, else where in the block the tensor begins
        end = 0
        for name, shape in shapes(config).items():
            size = 2
            for side in shape:
                size *= side
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
            digest = blake3(f"{seed} {name}".encode()).digest()
            phase = int.from_bytes(digest[:8], "little") % len(self._block)
            self._starts.append(end)
            self._kinds.append(-1 if len(shape) == 1 else phase)
            end += size
        self._header = json.dumps(header).encode()
        self._header = len(self._header).to_bytes(8, "little") + self._header
        self._size = len(self._header) + end

    def files(self) -> Mapping[str, int]:
        return {"config.json": len(self._json), self.FILE: self._size}

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        data = self._json if path == "config.json" else self._header
        if path == "config.json" or offset + length <= len(data):
            return data[offset : offset + length]
        if path != self.FILE or offset < len(data) or (offset - len(data)) % 2 or length % 2:
            raise OSError(f"{path} has no such bytes")
        return self._values(offset - len(data), length)

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        """Nothing to do: there is nothing to wait for."""

    def fingerprint(self) -> str:
        return f"made up {self._seed} {self._json.decode()}"

    def _values(self, start: int, length: int) -> memoryview:
        out = np.empty(length // 2, np.uint16)
        done = 0
        while done < len(out):
            place = start + 2 * done
            tensor = bisect.bisect_right(self._starts, place) - 1
            after = self._starts[tensor + 1] if tensor + 1 < len(self._starts) else start + length
            count = min(len(out) - done, (after - place) // 2)
            if self._kinds[tensor] < 0:
                out[done : done + count] = BF16_ONE
            else:
                first = (self._kinds[tensor] + (place - self._starts[tensor]) // 2) % len(self._block)
                count = min(count, len(self._block) - first)
                out[done : done + count] = self._block[first : first + count]
            done += count
        return out.view(np.uint8).data.cast("B")
