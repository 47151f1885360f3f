"""Manifests: one encoding, every entry checked, signatures over all of it."""

import hashlib
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import SwarmError
from swarm.trust.keyring import Keyring
from swarm.trust.manifest import (
    CHUNK_BYTES,
    MAX_FILES,
    BadManifest,
    Digests,
    FileEntry,
    Manifest,
    check_path,
    parse_signed,
    sign,
)
from swarm.wire import cbor
from swarm.wire.keys import BadSignature, KeyPair

OPERATOR = KeyPair(b"\x01" * 32)
OTHER = KeyPair(b"\x02" * 32)


def entry(path: str, size: int) -> FileEntry:
    count = -(-size // CHUNK_BYTES)
    return FileEntry(
        path, size, Digests.of(hashlib.sha256(f"{path!a}{i}".encode()).digest() for i in range(count))
    )


FILES = (entry("config.json", 700), entry("empty", 0), entry("model/a.safetensors", 2 * CHUNK_BYTES + 1))
MANIFEST = Manifest("olmoe", 3, 1000, 2000, FILES, ("https://example.org/models/olmoe/",))


def value_of(manifest: Manifest) -> dict[str, Any]:
    value = cbor.decode(manifest.body)
    assert isinstance(value, dict)
    return value


def test_there_and_back() -> None:
    signed = sign(MANIFEST, OPERATOR)
    again = parse_signed(signed.encode())
    assert again == signed
    assert again.manifest.root == MANIFEST.root
    assert again.manifest.body == MANIFEST.body
    assert again.encode() == signed.encode()
    assert again.signer == OPERATOR.key


def test_what_it_tells() -> None:
    assert MANIFEST.total_bytes == 700 + 2 * CHUNK_BYTES + 1
    (file,) = [entry for entry in MANIFEST.files if entry.path == "model/a.safetensors"]
    assert len(file.chunks) == 3
    assert list(file.chunks) == [file.chunks[i] for i in (0, 1, -1)] == list(file.chunks[:])
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            file.chunks[wrong]


def test_the_root_is_over_everything_and_the_content_over_the_files() -> None:
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"version": 4},
        {"issued": 1001},
        {"expires": 2001},
        {"sources": ()},
    ]
    for change in changes:
        other = replace(MANIFEST, **change)
        assert other.root != MANIFEST.root
        assert other.content == MANIFEST.content
    other = replace(MANIFEST, files=FILES[1:])
    assert other.root != MANIFEST.root
    assert other.content != MANIFEST.content


@pytest.mark.parametrize("path", ["a", "a/b", "ü/日本.txt", ".hidden", "a..b/c...", "a b", "-x", "x" * 255])
def test_safe_paths(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "./a",
        "a/.",
        "a/..",
        "../../canary",
        "a/../b",
        "a\\b",
        "..\\a",
        "C:\\x",
        "a\x00b",
        "a\nb",
        "\x1b[31m",
        "a\u202eb",
        "a\udc80",
        "x" * 256,
        "a/" * 600 + "b",
        "\u2028",
        "a/\x7f",
    ],
)
def test_unsafe_paths_refuse_the_whole_manifest(path: str) -> None:
    with pytest.raises(BadManifest) as caught:
        replace(MANIFEST, files=tuple(sorted([*FILES, entry(path, 5)], key=lambda e: e.path)))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "x" * 121},
        {"name": "a\nb"},
        {"name": " a"},
        {"version": 0},
        {"version": -1},
        {"version": 1 << 53},
        {"issued": -1},
        {"issued": 2000},
        {"expires": 1 << 41},
        {"files": (FILES[0], FILES[0])},
        {"files": FILES[::-1]},
        {"files": (entry("a", 1), entry("a/b", 1))},
        {"files": (entry("a", 1), entry("a-b", 1), entry("a/b/c", 1))},
        {"files": (entry("a-b", 1), entry("a/b", 1), entry("a/b-c", 1), entry("a/b/c", 1))},
        {"files": (FileEntry("a", 1, Digests(b"")),)},
        {"files": (FileEntry("a", 0, Digests(bytes(32))),)},
        {"files": (FileEntry("a", -1, Digests(b"")),)},
        {"files": (FileEntry("a", CHUNK_BYTES, Digests(bytes(64))),)},
        {"sources": ("ftp://x",)},
        {"sources": ("http://a b",)},
        {"sources": ("https://" + "x" * 2000,)},
        {"sources": ("https://é",)},
        {"sources": ("https://x\n",)},
        {"sources": ("https://x",) * 65},
    ],
)
def test_one_bad_thing_refuses_it_all(change: dict[str, Any]) -> None:
    with pytest.raises(BadManifest):
        replace(MANIFEST, **change)


def test_half_a_hash_is_no_hash() -> None:
    with pytest.raises(BadManifest):
        Digests(bytes(33))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"extra": 1},
        {"files": None},
        {"files": [1]},
        {"files": [{"path": "a"}]},
        {"sources": "x"},
        {"sources": [1]},
        {"files": [{"path": "a", "size": 1, "chunks": "text"}]},
        {"files": [{"path": 1, "size": 1, "chunks": bytes(32)}]},
        {"files": [{"path": "a", "size": "1", "chunks": bytes(32)}]},
        {"files": [{"path": "a", "size": 1, "chunks": bytes(31)}]},
        {"files": [{"path": "a", "size": True, "chunks": bytes(32)}]},
        {"name": 5},
        {"version": "3"},
        {"version": 1.0},
        {"files": [{"path": "../x", "size": 0, "chunks": b""}]},
    ],
)
def test_bodies_of_another_form_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadManifest):
        Manifest.parse(cbor.encode(value_of(MANIFEST) | change))


def test_signed_by_somebody_else() -> None:
    signed = sign(MANIFEST, OPERATOR)
    forged = sign(MANIFEST, OTHER)
    for wrong in (
        replace(signed, signature=forged.signature),
        replace(signed, signer=OTHER.key),
        replace(signed, signer=OTHER.key, signature=forged.signature),
        replace(signed, manifest=replace(MANIFEST, version=4)),
    ):
        with pytest.raises(BadSignature):
            parse_signed(wrong.encode())
    with pytest.raises(BadManifest, match="not active"):
        sign(MANIFEST, OTHER, Keyring.start(OPERATOR))


def test_each_changed_byte_is_noticed() -> None:
    good = sign(MANIFEST, OPERATOR).encode()
    luck = random.Random(5)
    for place in [*range(60), *(luck.randrange(len(good)) for _ in range(300))]:
        bad = bytearray(good)
        bad[place] ^= 1 << luck.randrange(8)
        with pytest.raises(SwarmError):
            parse_signed(bytes(bad))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(SwarmError):
        parse_signed(data)
    with pytest.raises(SwarmError):
        Manifest.parse(data)


def test_a_large_model_fits() -> None:
    """300 GB in 300,000 chunks."""
    files = tuple(FileEntry(f"{i:03}", 1000 * CHUNK_BYTES, Digests(bytes(32_000))) for i in range(300))
    signed = sign(replace(MANIFEST, files=files), OPERATOR)
    data = signed.encode()
    assert len(data) < 10_000_000
    assert parse_signed(data).manifest.root == signed.manifest.root


def test_as_many_files_as_there_may_be() -> None:
    files = tuple(FileEntry(f"{i:06}", 0, Digests(b"")) for i in range(MAX_FILES))
    manifest = replace(MANIFEST, files=files)
    assert Manifest.parse(manifest.body).root == manifest.root


@pytest.mark.parametrize("hostile", ["folders", "empty lists"])
def test_a_strangers_manifest_takes_no_hundredfold_memory(hostile: str) -> None:
    if hostile == "folders":  # all of them different, in few bytes
        paths = [f"{i:04}" + "/a" * 490 for i in range(500)]
        body = replace(MANIFEST, files=tuple(FileEntry(path, 0, Digests(b"")) for path in paths)).body
    else:
        body = cbor.encode({**value_of(MANIFEST), "sources": [[]] * 700_000})
    tracemalloc.start()
    try:
        Manifest.parse(body)
    except BadManifest as error:
        assert "more values" in str(error)  # noqa: PT017 - one of the two is refused, the other fits
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 * len(body)
