"""A GGUF file given in place of a model's directory: it, or all of its parts, is what is served."""

import hashlib
from pathlib import Path

import pytest

from swarm.peers.inventory import NotADirectory, hash_files, list_files
from swarm.peers.maintainer import DirectoryChunks


def test_only_the_file_itself_is_served(tmp_path: Path) -> None:
    for name in ("model.gguf", "other.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    model = tmp_path / "model.gguf"
    files = list_files(model)
    assert list(files) == ["model.gguf"]
    hashed = hash_files(model, files, tmp_path / "kept")
    assert hashed[0].entry.chunks.joined == hashlib.sha256(b"model.gguf").digest()
    assert DirectoryChunks(model, hashed, lambda path: None).read(0) == b"model.gguf"


def test_all_parts_are_served_by_the_name_of_any(tmp_path: Path) -> None:
    parts = [f"model-{number:05}-of-00002.gguf" for number in (1, 2)]
    for name in (*parts, "model-00001-of-00003.gguf", "model.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert list(list_files(tmp_path / parts[1])) == parts


def test_any_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"GGUF")
    with pytest.raises(NotADirectory, match="neither a directory nor a GGUF file"):
        list_files(tmp_path / "model.bin")
