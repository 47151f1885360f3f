"""Architectures whose settings or tensors are stored in ways of their own: what is read in several ways, and what is
refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine, Options
from engine.errors import CheckpointError, ConfigError, EngineError
from engine.source import DirectorySource
from tests.engine.gguf.converters import CHANGES
from tests.engine.gguf.writer import config_of, gguf_bytes, metadata_of, tensors_of, write_folder
from tests.engine.reference import feed, golden

Stored = dict[str, tuple[str, tuple[int, ...], bytes]]


def content(folder: Path, kind: str = "F32") -> tuple[dict[str, Any], Stored]:
    """A folder's metadata and tensors."""
    changes = CHANGES[folder.name] if folder.name == "kimi_k3" else {}  # which no file could hold as it is
    return metadata_of(config_of(folder, changes)), tensors_of(folder, kind, **changes)


def logits_of(path: Path, prompt: list[int]) -> Any:
    with DirectorySource(path) as source:
        engine = Engine.open(source, Options(weights="native"))
        return feed(engine, engine.model.new_state(), prompt)


def refused(
    path: Path, metadata: dict[str, Any], tensors: Stored, error: type[EngineError], said: str
) -> None:
    path.write_bytes(gguf_bytes(metadata, tensors))
    with DirectorySource(path) as source, pytest.raises(error, match=said):
        Engine.open(source)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("glm_moe_dsa", "glm-dsa"), ("hy_v3", "hy_v3"), ("glm4_moe", "glm4moe"), ("glm5_next", "glm5-next")],
)
def test_multi_token_prediction_is_left_out(
    oracle: Path, tmp_path: Path, name: str, architecture: str
) -> None:
    folder, file = oracle / name, tmp_path / "model.gguf"
    metadata, tensors = content(folder)
    file.write_bytes(gguf_bytes(metadata, tensors))
    expected = logits_of(file, golden(folder).prompt)
    last = metadata[f"{architecture}.block_count"] - 1
    beyond = {
        **{
            name.replace(f"blk.{last}.", f"blk.{last + 1}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"blk.{last}.")
        },
        **{
            f"blk.{last + 1}.nextn.{part}.weight": ("F32", (64, 64), bytes(64 * 64 * 4))
            for part in ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")
        },
    }
    said = {f"{architecture}.block_count": last + 2, f"{architecture}.nextn_predict_layers": 1}
    file.write_bytes(gguf_bytes({**metadata, **said}, {**tensors, **beyond}))
    np.testing.assert_array_equal(logits_of(file, golden(folder).prompt), expected)


def test_convolutions_and_decay_of_kimi_linear_may_have_other_sides(oracle: Path, tmp_path: Path) -> None:
    folder, file = oracle / "kimi_linear", tmp_path / "model.gguf"
    metadata, tensors = content(folder)
    file.write_bytes(gguf_bytes(metadata, tensors))
    expected = logits_of(file, golden(folder).prompt)
    for name, (kind, shape, data) in list(tensors.items()):
        if "_conv1d_" in name:
            assert shape == (1, 64, 1, 4)
            tensors[name] = (kind, shape[1:], data)
        if name.endswith("ssm_a"):
            tensors[name] = (kind, (4,), data)
    file.write_bytes(gguf_bytes(metadata, tensors))
    np.testing.assert_array_equal(logits_of(file, golden(folder).prompt), expected)


def test_older_files_of_glm_5_show_by_their_tensors_which_layers_have_an_indexer(
    oracle: Path, tmp_path: Path
) -> None:
    folder, file = oracle / "glm_moe_dsa", tmp_path / "model.gguf"
    metadata, tensors = content(folder)
    del metadata["glm-dsa.attention.indexer.types"]
    file.write_bytes(gguf_bytes({**metadata, "glm-dsa.context_length": 1 << 20}, tensors))
    answers = golden(folder)
    assert np.abs(logits_of(file, answers.prompt) - answers.logits).max() <= answers.atol
    tensors |= {
        name.replace("blk.3", "blk.2"): tensor
        for name, tensor in tensors.items()
        if name.startswith("blk.3.indexer.")
    }
    said = {**metadata, "glm-dsa.context_length": 1 << 20}
    refused(file, said, tensors, ConfigError, "which ones is not known")
    said = {**metadata, "glm-dsa.attention.indexer.types": [True, True, False, True]}
    refused(file, said, tensors, CheckpointError, "layers.2.self_attn.indexer")


@pytest.mark.parametrize(
    ("name", "changes", "error", "said"),
    [
        ("kimi_linear", {"kimi-linear.attention.head_count_kv": 1}, ConfigError, "head_count_kv is no list"),
        ("kimi_linear", {"kimi-linear.attention.head_count_kv": [0, 1]}, ConfigError, "each of 5 layers"),
        ("kimi_linear", {"kimi-linear.expert_weights_norm": False}, ConfigError, "expert_weights_norm"),
        ("kimi_linear", {"kimi-linear.kda.gate_lower_bound": -5.0}, ConfigError, "not understood"),
        ("kimi_linear", {"kimi-linear.kda.head_dim": 32}, CheckpointError, "64"),
        ("glm_moe_dsa", {"glm-dsa.attention.indexer.block_size": 4}, ConfigError, "not understood"),
        ("glm_moe_dsa", {"glm-dsa.attention.indexer.key_length": 64}, CheckpointError, "indexer"),
        ("deepseek_v4", {"deepseek4.expert_gating_func": 2}, ConfigError, "expert_gating_func = 2"),
        ("deepseek_v4", {"deepseek4.expert_shared_count": 2}, ConfigError, "expert_shared_count = 2"),
        ("deepseek_v4", {"deepseek4.swiglu_clamp_exp": [1.0, 1.0, 2.0, 1.0]}, ConfigError, "one number"),
        ("deepseek_v4", {"deepseek4.swiglu_clamp_shexp": [2.0] * 4}, ConfigError, "one number"),
        ("deepseek_v4", {"deepseek4.attention.compress_ratios": [0, 4, 8, 4]}, ConfigError, "layer_types"),
        ("deepseek_v4", {"deepseek4.nextn_predict_layers": 1}, ConfigError, "not understood"),
        ("deepseek_v4", {"deepseek4.hyper_connection.low_rank": 8}, ConfigError, "not understood"),
        ("glm5_next", {"glm5-next.attention.layer_norm_epsilon": 1e-5}, ConfigError, "layer_norm_epsilon"),
        ("glm5_next", {"glm5-next.swiglu_clamp_exp": [0.0] * 5}, ConfigError, "one number"),
        ("glm5_next", {"glm5-next.attention.indexer.kpool_select_tail": False}, ConfigError, "select_tail"),
        ("glm5_next", {"glm5-next.attention.indexer.kpool": 5}, ConfigError, "multiple of index_kpool"),
        ("glm5_next", {"glm5-next.hyper_connection.magnitude": 2.0}, ConfigError, "not understood"),
        ("kimi_k3", {"kimi-k3.expert_latent_length": 64}, CheckpointError, "64"),
        ("kimi_k3", {"kimi-k3.activation.new": 1.0}, ConfigError, "not understood"),
        ("hy_v3", {"hy_v3.expert_weights_norm": False}, ConfigError, "expert_weights_norm"),
        ("hy_v3", {"hy_v3.expert_shared_feed_forward_length": 40}, ConfigError, "not whole ones"),
        ("hy_v3", {"hy_v3.expert_gating_func": 1}, ConfigError, "expert_gating_func = 1"),
    ],
)
def test_what_is_not_understood_or_does_not_fit_is_refused(
    oracle: Path, tmp_path: Path, name: str, changes: dict[str, Any], error: type[EngineError], said: str
) -> None:
    metadata, tensors = content(oracle / name, "F16")
    refused(tmp_path / "model.gguf", {**metadata, **changes}, tensors, error, said)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("attn_q", "layers.0.self_attn.q_proj'"),
        ("ssm_a.weight", "layers.0.self_attn.A.weight'"),
        ("ssm_dt.weight", "blk.0.ssm_dt.weight'"),
        ("attn_qkv.weight", "blk.0.attn_qkv.weight'"),
    ],
)
def test_a_tensor_with_another_suffix_or_name_is_refused(
    oracle: Path, tmp_path: Path, other: str, said: str
) -> None:
    metadata, tensors = content(oracle / "kimi_linear", "F16")
    tensors[f"blk.0.{other}"] = ("F32", (4,), bytes(16))
    refused(tmp_path / "model.gguf", metadata, tensors, CheckpointError, re.escape(said))


def test_whole_numbers_are_no_weights(oracle: Path, tmp_path: Path) -> None:
    metadata, tensors = content(oracle / "deepseek_v4", "F16")
    _, shape, data = tensors["blk.0.attn_q_a.weight"]
    tensors["blk.0.attn_q_a.weight"] = ("I32", shape, data + data)
    refused(tmp_path / "model.gguf", metadata, tensors, CheckpointError, "stored as I32")


@pytest.mark.parametrize(
    ("name", "layer"),
    [("kimi_linear", 1), ("glm_moe_dsa", 1), ("deepseek_v4", 0), ("glm5_next", 1), ("hy_v3", 1)],
)
def test_experts_run_packed_from_their_blocks(oracle: Path, tmp_path: Path, name: str, layer: int) -> None:
    write_folder(oracle / name, "Q8_0", tmp_path / "model.gguf")
    with DirectorySource(tmp_path) as source:
        engine = Engine.open(source)
        assert "q8" in str(engine.bank.shape(layer))
        logits = feed(engine, engine.model.new_state(), golden(oracle / name).prompt[:20])
        assert np.isfinite(logits).all()
