"""What a model is said to take before it is opened, beside what it takes then."""

from pathlib import Path

import pytest

from engine.engine import Engine, Options
from engine.needs import needs_of
from engine.numerics import Weights
from engine.source import DirectorySource

# Folders whose small matrices are kept in forms of their own: compressors, hyper-connections, vision.
ODD = {"deepseek_v4": (0.5, 1.2), "glm5_next": (0.7, 1.2), "inkling": (0.9, 2.3)}
FOLDERS = [
    "olmoe",
    "olmoe-f32",
    "qwen3_moe-sharded",
    "qwen3_moe-int4",
    "mixtral",
    "gpt_oss-mxfp4",
    "deepseek_v3-fp8",
]
FOLDERS += ["kimi_k2-int4", "kimi_linear", "qwen3_next", "glm_moe_dsa", "hy_v3-tied", *ODD]


@pytest.mark.parametrize("weights", ["auto", "native", "q4"])
@pytest.mark.parametrize("name", FOLDERS)
def test_needs_are_what_is_held_then(oracle: Path, name: str, weights: Weights) -> None:
    source = DirectorySource(oracle / name)
    needs = needs_of(source, weights)
    with Engine.open(source, Options(weights)) as engine:
        layout = engine.bank.layout
        assert needs.experts == engine.bank.total_bytes
        assert needs.layer == max(
            engine.bank.shape(layer).nbytes * layout.experts_per_layer for layer in layout.layers
        )
        low, high = ODD.get(name, (0.9, 1.2))
        assert low <= needs.dense / engine.model.resident_bytes <= high
