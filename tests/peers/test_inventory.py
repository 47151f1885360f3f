"""Hashing a model directory: exact, once, and again whenever a file moved at all."""

import hashlib
import os
import time
from pathlib import Path

import cbor2
import pytest

from swarm.peers import inventory
from swarm.peers.inventory import (
    BrokenLink,
    ChangedWhileHashing,
    FileState,
    HashedFile,
    HashProgress,
    LoopingLink,
    NotADirectory,
    NothingToServe,
    OddFile,
    hash_files,
    list_files,
)
from swarm.trust.manifest import CHUNK_BYTES

LATER_NS = 10**10


def later() -> int:
    """A clock by which everything on disk was written long ago."""
    return time.time_ns() + LATER_NS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "extra").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "empty").write_bytes(b"")
    (folder / "exact").write_bytes(b"e" * CHUNK_BYTES)
    (folder / "weights").write_bytes(bytes(range(256)) * (11 * CHUNK_BYTES // 256) + b"tail")
    (folder / "extra" / "more").write_bytes(b"more")
    return folder


def hashed(model: Path, kept: Path) -> tuple[dict[str, HashedFile], list[HashProgress]]:
    seen: list[HashProgress] = []
    files = hash_files(model, list_files(model), kept, progress=seen.append, now_ns=later)
    return {file.entry.path: file for file in files}, seen


def test_every_file_is_listed_with_the_sha256_of_each_mib(model: Path, tmp_path: Path) -> None:
    files, _ = hashed(model, tmp_path / "kept")
    assert list(files) == sorted(["config.json", "empty", "exact", "extra/more", "weights"])
    for path, file in files.items():
        content = (model / path).read_bytes()
        pieces = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        assert file.entry.size == len(content)
        assert list(file.entry.chunks) == [hashlib.sha256(piece).digest() for piece in pieces]


def test_progress_only_grows_and_ends_at_the_total(model: Path, tmp_path: Path) -> None:
    _, seen = hashed(model, tmp_path / "kept")
    done = [step.done_bytes for step in seen]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == seen[-1].total_bytes == sum(state.size for state in list_files(model).values())


def test_hashes_are_used_again_until_anything_about_a_file_moves(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, _ = hashed(model, kept)
    again, seen = hashed(model, kept)
    assert again == first
    assert seen[0].total_bytes == 0
    assert seen[0].reused_bytes > 11 * CHUNK_BYTES

    weights = model / "weights"
    before = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))  # a copy that keeps times and size
    changed, seen = hashed(model, kept)
    assert seen[0].total_bytes == before.st_size
    assert changed["weights"].entry.chunks != first["weights"].entry.chunks
    assert changed["exact"] == first["exact"]


def test_a_replaced_file_of_the_same_size_and_time_is_hashed_again(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, _ = hashed(model, kept)
    status = (model / "exact").stat()
    other = model / "other"
    other.write_bytes(b"o" * CHUNK_BYTES)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(model / "exact")
    changed, _ = hashed(model, kept)
    assert changed["exact"].entry.chunks != first["exact"].entry.chunks


def test_hashes_of_a_file_just_written_are_not_kept(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    hash_files(model, list_files(model), kept, now_ns=lambda: FileState.of((model / "exact").stat()).ctime_ns)
    assert not kept.exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 40, b"\0" * 500])
def test_damaged_kept_hashes_are_not_believed(damage: bytes, model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, _ = hashed(model, kept)
    for record in kept.iterdir():
        content = record.read_bytes()
        record.write_bytes(damage or content[:-1] + bytes([content[-1] ^ 1]))
    again, seen = hashed(model, kept)
    assert again == first
    assert seen[0].reused_bytes == 0


def test_kept_hashes_of_another_version_are_not_used(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, _ = hashed(model, kept)
    for place, record in enumerate(kept.iterdir()):
        other = cbor2.dumps({"of": "another", "a": "form"}) if place % 2 else cbor2.dumps(["none"])
        record.write_bytes(hashlib.sha256(other).digest() + other)
    again, seen = hashed(model, kept)
    assert again == first
    assert seen[0].reused_bytes == 0


def test_a_file_that_changes_while_it_is_read_is_named(model: Path, tmp_path: Path) -> None:
    files = list_files(model)
    os.truncate(model / "weights", 100)
    with pytest.raises(ChangedWhileHashing, match="weights"):
        hash_files(model, files, tmp_path / "kept", now_ns=later)
    files = list_files(model)
    (model / "other").write_bytes(b"f" * CHUNK_BYTES)
    (model / "other").replace(model / "exact")
    with pytest.raises(ChangedWhileHashing, match="exact"):
        hash_files(model, files, tmp_path / "kept", now_ns=later)


def test_links_are_followed_and_hidden_or_transient_files_left_out(model: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"blob")
    (model / "linked").symlink_to(blob)
    (model / "loop").symlink_to(model)
    (model / ".cache").mkdir()
    (model / ".cache" / "x").write_bytes(b"x")
    (model / "weights.incomplete").write_bytes(b"half")
    listed = list_files(model)
    assert "linked" in listed
    assert listed["linked"].size == 4
    assert not [path for path in listed if "loop" in path or ".cache" in path or "incomplete" in path]


def test_linked_directories_are_part_of_the_model_unless_they_lead_back(model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "shard").write_bytes(b"shard")
    (elsewhere / "round").symlink_to(elsewhere / "deep" / "..")
    (model / "tied").symlink_to(elsewhere)
    (model / "twice").symlink_to(model / "extra")
    (model / "extra" / "back").symlink_to(elsewhere)
    (elsewhere / "forth").symlink_to(model / "extra")
    (model / "up").symlink_to("..")
    assert {path for path in list_files(model) if "/" in path} == {
        "extra/more", "extra/back/deep/shard", "tied/deep/shard", "tied/forth/more", "twice/more",
        "twice/back/deep/shard",
    }  # fmt: skip


def test_what_cannot_be_served_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(NotADirectory, match="nowhere"):
        list_files(tmp_path / "nowhere")
    with pytest.raises(NotADirectory, match="weights"):
        list_files(model / "weights")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingToServe, match="empty"):
        list_files(tmp_path / "empty")
    (model / "gone").symlink_to(tmp_path / "target")
    with pytest.raises(BrokenLink, match="target"):
        list_files(model)
    (model / "gone").unlink()
    (model / "itself").symlink_to("itself")
    with pytest.raises(LoopingLink, match="itself is a link to itself"):
        list_files(model)
    (model / "itself").unlink()
    os.mkfifo(model / "pipe")
    with pytest.raises(OddFile, match="pipe"):
        list_files(model)


def test_several_threads_give_what_one_gives(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "_SPAN_BYTES", 2 * CHUNK_BYTES)
    one = hash_files(model, list_files(model), tmp_path / "one", threads=1, now_ns=later)
    many = hash_files(model, list_files(model), tmp_path / "many", threads=5, now_ns=later)
    assert one == many
