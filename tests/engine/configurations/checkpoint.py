"""Checkpoints with drawn weights: each tensor's values follow from its name and shape alone, so that whoever made the
reference answers and whoever tests with them draw the same ones.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
PRECISE = (
    "A_log",
    "correction_bias",
    "expert_bias",
    "hc_",
    "sinks",
    "global_scale",
)  # kept in f32 by the releases


def draw(name: str, shape: Sequence[int], experts: int) -> Values:
    """f32 values of about the size that trained weights have (int64 expert ids for a table of tokens)."""
    name = name.removeprefix(
        "language_model."
    )  # the text model's weights are the same ones alone and in a whole
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("tid2eid"):
        return np.argsort(random.random((shape[0], experts)), axis=1)[:, : shape[1]].astype(np.int64)
    values = random.standard_normal(shape).astype(np.float32)
    if "A_log" in name or name.endswith(("hc_scale", ".scale")):
        return np.tanh(values)
    if "conv" in name:
        return values * np.float32(0.5)
    if "embed" in name and len(shape) == 2:
        return values
    if "norm" in name and len(shape) == 1:
        return np.float32(1.0) + values * np.float32(0.2)
    if len(shape) < 2:
        return values * np.float32(1.0 if "dt_bias" in name else 0.2)
    size = 3.0 if name.startswith(("lm_head", "head")) else 1.3
    return values * np.float32(size / max(shape[-1], 1) ** 0.5)


def stored(values: Values, kind: str) -> bytes:
    """The bytes of f32 values in a stored format, rounded to even; of integers as they are."""
    if kind == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float16).tobytes() if kind == "F16" else values.tobytes()


def write(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], shards: int = 1
) -> None:
    """Writes config.json and the weights, in the format that the configuration names, in one file or several."""
    text = config.get("text_config", config)
    usual = STORED[config.get("torch_dtype") or config.get("dtype") or "bfloat16"]
    experts = next(
        (text[key] for key in ("n_routed_experts", "num_experts", "num_local_experts") if key in text), 0
    )
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(shapes)
    weight_map = {}
    for shard in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = bytearray()
        for name in names[shard::shards]:
            values = draw(name, shapes[name], experts)
            kind = (
                "I64"
                if values.dtype == np.int64
                else "F32"
                if any(part in name for part in PRECISE)
                else usual
            )
            begin = len(data)
            data += stored(values, kind)
            header[name] = {"dtype": kind, "shape": list(shapes[name]), "data_offsets": [begin, len(data)]}
            weight_map[name] = file
        head = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(head)) + head + data)
    if shards > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
