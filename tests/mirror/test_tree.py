"""Where each byte is."""

import pytest

from mirror.errors import NoSuchFile, OutsideFile
from mirror.tree import Tree
from swarm.trust.manifest import Manifest
from tests.mirror.fakes import CHUNK, make_model, real_tree, small_tree

MODEL = make_model({"a.json": 10, "empty": 0, "w/x/one": 2 * CHUNK, "w/y": 3 * CHUNK + 1})
TREE = small_tree(MODEL)


def test_files_folders_and_sizes() -> None:
    assert dict(TREE.files) == {path: len(data) for path, data in MODEL.items()}
    assert TREE.total_bytes == 5 * CHUNK + 11
    assert TREE.children("") == ("a.json", "empty", "w")
    assert TREE.children("w") == ("x", "y")
    assert TREE.children("w/x") == ("one",)
    assert TREE.children("w/y") is None
    assert TREE.size("empty") == 0
    with pytest.raises(NoSuchFile, match="nothing"):
        TREE.size("nothing")


def test_chunks_are_numbered_through_all_files() -> None:
    assert TREE.chunk_count == 7
    found = [TREE.chunk(index) for index in range(7)]
    assert [(c.path, c.offset, c.size) for c in found] == [
        ("a.json", 0, 10),
        ("w/x/one", 0, CHUNK),
        ("w/x/one", CHUNK, CHUNK),
        ("w/y", 0, CHUNK),
        ("w/y", CHUNK, CHUNK),
        ("w/y", 2 * CHUNK, CHUNK),
        ("w/y", 3 * CHUNK, 1),
    ]
    assert [chunk.index for chunk in found] == list(range(7))
    assert list(TREE.chunks("w/y")) == found[3:]
    assert list(TREE.chunks("empty")) == []
    for index in (-1, 7):
        with pytest.raises(IndexError):
            TREE.chunk(index)


def test_spans_are_the_bytes_asked_for() -> None:
    for path, data in MODEL.items():
        for start in range(0, len(data) + 1, 37):
            for length in (0, 1, 100, 300):
                if start + length > len(data):
                    with pytest.raises(OutsideFile):
                        TREE.spans(path, start, length)
                    continue
                spans = TREE.spans(path, start, length)
                whole = b"".join(
                    data[s.chunk.offset : s.chunk.offset + s.chunk.size][s.start : s.stop] for s in spans
                )
                assert whole == data[start : start + length]
                assert all(span.start < span.stop for span in spans)
    with pytest.raises(OutsideFile):
        TREE.spans("w/y", -1, 1)


def test_the_tree_of_a_manifest() -> None:
    files = tuple(real_tree(MODEL)._entries)
    tree = Tree.of(Manifest("m", 1, 1, 2, files))
    assert tree.chunk_count == 3
    assert tree.chunk_bytes == 1 << 20


def test_the_numbers_of_a_files_chunks() -> None:
    tree = small_tree(make_model({"a": 3 * CHUNK, "b": 0, "c": 1}))
    assert [tree.numbers(path) for path in ("a", "b", "c")] == [(0, 3), (3, 3), (3, 4)]
    assert [chunk.index for chunk in tree.chunks("a")] == list(range(*tree.numbers("a")))
    with pytest.raises(NoSuchFile):
        tree.numbers("d")
