"""GGUF files of Qwen3-Next and Qwen3.5-MoE: what only these have. Their answers are held to llama.cpp in test_gguf."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.arrays import F32
from engine.cache import State
from engine.checkpoint import Checkpoint
from engine.delta import DeltaShape
from engine.engine import Engine, Options
from engine.errors import CheckpointError, ConfigError, EngineError
from engine.kernels import sigmoid
from engine.models import Batch, Segment
from engine.numerics import Weights
from engine.source import DirectorySource
from tests.engine.gguf.writer import config_of, encoded, gguf_bytes, metadata_of, tensors_of, write_folder
from tests.engine.reference import feed, golden

RANDOM = np.random.default_rng(5)
BOTH = pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe"])


def normal(*shape: int) -> F32:
    return RANDOM.standard_normal(shape).astype(np.float32)


def logits_of(path: Path, prompt: list[int]) -> Any:
    with DirectorySource(path) as source:
        engine = Engine.open(source, Options(weights="native"))
        return feed(engine, engine.model.new_state(), prompt)


def test_tiled_value_heads_are_those_of_a_checkpoint_in_another_order() -> None:
    keys, heads, width, count = 2, 6, 4, 5
    grouped, tiled = (DeltaShape(keys, heads, 8, width, 3, tiled) for tiled in (False, True))
    order = np.arange(heads).reshape(keys, -1).T.reshape(-1)  # grouped heads as tiled ones come
    assert order.tolist() == [0, 3, 1, 4, 2, 5]
    values = (order[:, None] * width + np.arange(width)).reshape(-1) + 2 * grouped.keys
    channels = np.concatenate([np.arange(2 * grouped.keys), values])
    mixed, taps = normal(count, grouped.channels), normal(3, grouped.channels)
    decay, beta = sigmoid(normal(count, heads, 1)), sigmoid(normal(count, heads))

    def seen(shape: DeltaShape, mixed: F32, taps: F32, decay: F32, beta: F32) -> F32:
        state = State([shape.new_part()])
        state.prepare(count)
        return shape.seen(mixed, taps, decay, beta, Batch([Segment(state, range(count))]), state.parts)

    expected = seen(grouped, mixed, taps, decay, beta)
    assert expected.any()
    found = seen(tiled, mixed[:, channels], taps[:, channels], decay[:, order], beta[:, order])
    np.testing.assert_array_equal(found, expected[:, order])


@BOTH
@pytest.mark.parametrize("weights", ["native", "auto"])
def test_a_prompt_may_be_cut_and_have_company(
    oracle: Path, tmp_path: Path, name: str, weights: Weights
) -> None:
    write_folder(oracle / name, "Q8_0", tmp_path / "model.gguf")
    prompt = golden(oracle / name).prompt
    with DirectorySource(tmp_path) as source:
        engine = Engine.open(source, Options(weights=weights))
        whole = feed(engine, engine.model.new_state(), prompt)
        growing = engine.model.new_state()
        for start, end in ((0, 1), (1, 30), (30, 31), (31, len(prompt))):
            np.testing.assert_array_equal(feed(engine, growing, prompt[start:end]), whole[start:end])
        both = [Segment(engine.model.new_state(), prompt[:end], "all") for end in (9, 20)]
        together = engine.model.forward(both, engine.experts)
        np.testing.assert_array_equal(together, np.concatenate([whole[:9], whole[:20]]))


def test_the_oldest_files_have_the_projections_of_linear_attention_in_one(
    oracle: Path, tmp_path: Path
) -> None:
    folder, file = oracle / "qwen3_next", tmp_path / "model.gguf"
    tensors, metadata = tensors_of(folder, "F32"), metadata_of(config_of(folder, {}))
    file.write_bytes(gguf_bytes(metadata, tensors))
    prompt = golden(folder).prompt
    expected = logits_of(file, prompt)
    with DirectorySource(folder) as source:
        checkpoint = Checkpoint.open(source)
        for layer in range(3):
            del tensors[f"blk.{layer}.attn_qkv.weight"], tensors[f"blk.{layer}.attn_gate.weight"]
            values = checkpoint.f32(f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight")
            tensors[f"blk.{layer}.ssm_in.weight"] = encoded(values, "F32")
    del metadata["qwen3next.full_attention_interval"]
    file.write_bytes(gguf_bytes(metadata, tensors))
    np.testing.assert_array_equal(logits_of(file, prompt), expected)


def test_multi_token_prediction_may_be_there_or_not(oracle: Path, tmp_path: Path) -> None:
    folder, file = oracle / "qwen3_5_moe", tmp_path / "model.gguf"
    tensors, metadata = tensors_of(folder, "F16"), metadata_of(config_of(folder, {}))
    file.write_bytes(gguf_bytes(metadata, tensors))
    prompt = golden(folder).prompt
    expected = logits_of(file, prompt)
    ahead = [name for name in tensors if name.startswith("blk.4.")]
    assert {"blk.4.attn_q.weight", "blk.4.ffn_up_exps.weight", "blk.4.nextn.eh_proj.weight"} <= {*ahead}
    for name in ahead:
        del tensors[name]
    del metadata["qwen35moe.nextn_predict_layers"]
    metadata["qwen35moe.block_count"] -= 1
    file.write_bytes(gguf_bytes(metadata, tensors))
    np.testing.assert_array_equal(logits_of(file, prompt), expected)


@pytest.mark.parametrize(
    ("name", "changes", "error", "said"),
    [
        ("qwen3_next", {"ssm.v_head_reordered": True}, ConfigError, "v_head_reordered, which is not"),
        ("qwen3_next", {"nextn_predict_layers": 1}, ConfigError, "nextn_predict_layers, which is not"),
        ("qwen3_next", {"ssm.time_step_rank": 3}, ConfigError, "time_step_rank is 3; a divisor of 64"),
        ("qwen3_next", {"ssm.group_count": 3}, ConfigError, "a divisor of 4"),
        ("qwen3_next", {"ssm.state_size": 8}, CheckpointError, "config.json makes it"),
        ("qwen3_next", {"ssm.conv_kernel": 3}, CheckpointError, r"conv1d.*\[128, 1, 3\]"),
        ("qwen3_next", {"full_attention_interval": 2}, CheckpointError, "layers.1.self_attn"),
        ("qwen3_next", {"attention.head_count_kv": [0, 0, 0, 2]}, ConfigError, "head_count_kv"),
        ("qwen3_5_moe", {"expert_weights_norm": False}, ConfigError, "expert_weights_norm = False"),
        ("qwen3_5_moe", {"rope.dimension_sections": [2, 1, 0, 1]}, ConfigError, r"\[2, 1, 0, 1\], which"),
        ("qwen3_5_moe", {"rope.dimension_sections": [11, 11, 10, 0]}, ConfigError, "4 pairs"),
        ("qwen3_5_moe", {"rope.dimension_sections": [2, 2]}, ConfigError, "four whole numbers"),
        ("qwen3_5_moe", {"rope.dimension_sections": "all"}, ConfigError, "four whole numbers"),
    ],
)
def test_what_is_not_understood_or_does_not_fit_is_refused(
    oracle: Path, tmp_path: Path, name: str, changes: dict[str, Any], error: type[EngineError], said: str
) -> None:
    metadata = metadata_of(config_of(oracle / name, {}))
    changed = {f"{metadata['general.architecture']}.{key}": value for key, value in changes.items()}
    content = gguf_bytes({**metadata, **changed}, tensors_of(oracle / name, "F16"))
    (tmp_path / "model.gguf").write_bytes(content)
    with DirectorySource(tmp_path) as source, pytest.raises(error, match=said):
        Engine.open(source)


def test_a_file_of_multi_token_prediction_alone_does_not_count(oracle: Path, tmp_path: Path) -> None:
    write_folder(oracle / "qwen3_5_moe", "F16", tmp_path / "model.gguf")
    (tmp_path / "mtp-model.gguf").write_bytes(b"GGUF")
    with DirectorySource(tmp_path) as source:
        assert Checkpoint.open(source).config["model_type"] == "qwen3_5_moe"
