"""A model's files as tensors: indexes, shards, missing and foreign files, parts of tensors."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.checkpoint import Checkpoint, merged
from engine.errors import CheckpointError, ConfigError
from engine.source import DirectorySource


class MemorySource:
    """Files in memory that remember what was read."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)
        self.reads: list[tuple[str, int, int]] = []
        self.hints: list[tuple[str, int, int]] = []

    def files(self) -> Mapping[str, int]:
        return {path: len(data) for path, data in self._files.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        self.reads.append((path, offset, length))
        data = self._files[path][offset : offset + length]
        if len(data) != length:
            raise OSError(f"{path} is too short")
        return data

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        self.hints.extend(ranges)

    def fingerprint(self) -> str | None:
        return None


def shard(tensors: Mapping[str, np.ndarray[Any, Any]], dtypes: Mapping[str, str] | None = None) -> bytes:
    names = {"float32": "F32", "uint16": "BF16", "float16": "F16", "int32": "I32", "int64": "I64"}
    header: dict[str, Any] = {}
    data = b""
    for name, value in tensors.items():
        dtype = (dtypes or {}).get(name, names.get(value.dtype.name, "U8"))
        end = len(data) + value.nbytes
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(data), end]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


A = np.arange(6, dtype=np.float32).reshape(3, 2)
B = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)  # 1, −2, infinity, the least subnormal
CONFIG = json.dumps({"model_type": "olmoe"}).encode()


def index(weight_map: Mapping[str, str]) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


def test_reads_a_single_file() -> None:
    checkpoint = Checkpoint.open(
        MemorySource({"config.json": CONFIG, "model.safetensors": shard({"a": A, "b": B})})
    )
    assert checkpoint.config == {"model_type": "olmoe"}
    assert "a" in checkpoint
    np.testing.assert_array_equal(checkpoint.f32("a"), A)
    np.testing.assert_array_equal(checkpoint.f32("b"), np.array([1.0, -2.0, np.inf, 2.0**-133], np.float32))
    assert checkpoint.raw("b").dtype == np.uint16


def test_reads_only_the_part_asked_for() -> None:
    source = MemorySource({"config.json": CONFIG, "model.safetensors": shard({"a": A})})
    checkpoint = Checkpoint.open(source)
    source.reads.clear()
    np.testing.assert_array_equal(checkpoint.f32("a", 1, 2), A[1:])
    assert [length for _, _, length in source.reads] == [16]
    with pytest.raises(CheckpointError, match="3 entries"):
        checkpoint.raw("a", 2, 2)


def test_integers_of_any_width_become_int64() -> None:
    files = shard({"narrow": np.array([1, 2], np.int32), "wide": np.array([3], np.int64), "a": A})
    checkpoint = Checkpoint.open(MemorySource({"config.json": CONFIG, "model.safetensors": files}))
    assert checkpoint.integers("narrow").dtype == np.int64
    assert checkpoint.integers("wide").tolist() == [3]
    with pytest.raises(CheckpointError, match="integers were expected"):
        checkpoint.integers("a")
    with pytest.raises(CheckpointError, match="plain float was expected"):
        checkpoint.f32("narrow")


def test_golden_answers_are_no_weights() -> None:
    files = {"config.json": CONFIG, "golden.safetensors": shard({"logits": A})}
    with pytest.raises(CheckpointError, match="no safetensors weights"):
        Checkpoint.open(MemorySource(files))
    checkpoint = Checkpoint.open(MemorySource({**files, "weights.safetensors": shard({"a": A})}))
    assert list(checkpoint.tensors) == ["a"]


def test_reads_shards_with_an_index_and_without() -> None:
    files = {
        "config.json": CONFIG,
        "model-00001-of-00002.safetensors": shard({"a": A}),
        "model-00002-of-00002.safetensors": shard({"b": B}),
    }
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for extra in ({}, {"model.safetensors.index.json": index(weight_map)}):
        assert set(Checkpoint.open(MemorySource({**files, **extra})).tensors) == {"a", "b"}


@pytest.mark.parametrize("indexed", [True, False])
def test_names_a_missing_shard(indexed: bool) -> None:
    files = {"config.json": CONFIG, "model-00001-of-00002.safetensors": shard({"a": A})}
    if indexed:
        files["model.safetensors.index.json"] = index(
            {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        )
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors missing"):
        Checkpoint.open(MemorySource(files))


def test_a_left_over_index_does_not_hide_a_complete_file() -> None:
    files = {
        "config.json": CONFIG,
        "model.safetensors": shard({"a": A}),
        "model.safetensors.index.json": index({"a": "model-00001-of-00001.safetensors"}),
    }
    assert list(Checkpoint.open(MemorySource(files)).tensors) == ["a"]


@pytest.mark.parametrize("path", ["../secret.safetensors", "/etc/passwd", "a\\b", "a/../../b", "x\n", 5])
def test_an_index_cannot_lead_out_of_the_model(path: object) -> None:
    files = {
        "config.json": CONFIG,
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": path}}).encode(),
    }
    with pytest.raises(CheckpointError, match="no file of the model"):
        Checkpoint.open(MemorySource(files))


def test_an_index_that_belongs_to_other_files_is_refused() -> None:
    files = {
        "config.json": CONFIG,
        "model-00001-of-00001.safetensors": shard({"a": A}),
        "model.safetensors.index.json": index({"b": "model-00001-of-00001.safetensors"}),
    }
    with pytest.raises(CheckpointError, match="belongs to other files"):
        Checkpoint.open(MemorySource(files))


def test_a_tensor_found_nowhere_names_the_files() -> None:
    checkpoint = Checkpoint.open(MemorySource({"config.json": CONFIG, "model.safetensors": shard({"a": A})}))
    with pytest.raises(CheckpointError, match=r"'b' is in none of the model's files \(model.safetensors\)"):
        checkpoint.raw("b")


def test_a_file_cut_short_is_named() -> None:
    data = shard({"a": A})
    with pytest.raises(CheckpointError, match=r"model\.safetensors is cut short"):
        Checkpoint.open(MemorySource({"config.json": CONFIG, "model.safetensors": data[:-1]}))


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
def test_a_git_lfs_pointer_is_named(path: str) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    files = {"config.json": CONFIG, "model.safetensors": shard({"a": A}), path: pointer}
    with pytest.raises(CheckpointError, match=f"{path} is a Git-LFS pointer"):
        Checkpoint.open(MemorySource(files))


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a directory"):
        DirectorySource(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Checkpoint.open(DirectorySource(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        Checkpoint.open(DirectorySource(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        Checkpoint.open(DirectorySource(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text("x")
    with pytest.raises(CheckpointError, match=r"weights as \.bin were found"):
        Checkpoint.open(DirectorySource(tmp_path))


def test_a_directory_is_read_by_range_and_says_when_a_file_shrank(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(range(100)))
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with DirectorySource(tmp_path) as source:
        assert source.files() == {"f": 100}
        assert bytes(source.read("f", 10, 5)) == bytes(range(10, 15))
        source.prefetch([("f", 0, 100)])
        with file.open("r+b") as opened:
            opened.truncate(50)
        with pytest.raises(OSError, match="ends at byte 50"):
            source.read("f", 40, 20)
        with pytest.raises(FileNotFoundError, match="no file 'g'"):
            source.read("g", 0, 1)


def test_neighbouring_ranges_are_joined() -> None:
    assert merged([("f", 10, 5), ("f", 0, 10), ("g", 0, 1), ("f", 20, 2), ("f", 21, 4)]) == [
        ("f", 0, 15),
        ("f", 20, 5),
        ("g", 0, 1),
    ]
