"""Headers of safetensors files: what is read, and that every hostile or damaged one is refused with a typed
error."""

import contextlib
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.safetensors import header_length, parse_header


def header(entries: Mapping[str, Any]) -> bytes:
    return json.dumps(entries).encode()


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def parse(text: bytes, data: int) -> Any:
    return parse_header("model.safetensors", 8 + len(text) + data, text)


def test_reads_tensors_with_their_place_in_the_file() -> None:
    text = header(
        {
            "__metadata__": {"format": "pt"},
            "b": entry("BF16", [2, 3], 8, 20),
            "a": entry("F32", [2], 0, 8),
            "empty": entry("F32", [0, 4], 20, 20),
            "scalar": entry("I64", [], 20, 28),
        }
    )
    tensors = parse(text, 28)
    base = 8 + len(text)
    assert (tensors["a"].offset, tensors["a"].nbytes, tensors["a"].shape) == (base, 8, (2,))
    assert (tensors["b"].offset, tensors["b"].nbytes, tensors["b"].dtype) == (base + 8, 12, "BF16")
    assert tensors["empty"].nbytes == 0
    assert tensors["scalar"].shape == ()
    assert "__metadata__" not in tensors


@pytest.mark.parametrize(
    ("text", "data", "says"),
    [
        (header({"a": entry("F32", [2], 0, 8)}), 7, "cut short"),
        (header({"a": entry("F32", [2], 0, 8)}), 9, "after its last tensor"),
        (header({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}), 8, "overlaps"),
        (header({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 12, 16)}), 16, "gap"),
        (header({"a": entry("F32", [1], 4, 8)}), 8, "gap"),
        (header({"a": entry("F32", [3], 0, 8)}), 8, "takes 12"),
        (header({"a": entry("F33", [2], 0, 8)}), 8, "unknown dtype 'F33'"),
        (header({"a": entry("F32", [-2], 0, 8)}), 8, "impossible shape"),
        (header({"a": entry("F32", [True], 0, 4)}), 4, "impossible shape"),
        (header({"a": entry("F32", [1 << 40, 1 << 40], 0, 8)}), 8, "takes"),
        (header({"a": entry("F32", [(1 << 32) + 2], 0, 8)}), 8, "takes 17,179,869,192"),
        (header({"a": entry("F32", [1 << 30, 4], 0, 0)}), 0, "takes 17,179,869,184"),
        (header({"a": entry("F32", [1 << 61, 8], 0, 0)}), 0, "takes"),
        (header({"a": entry("F32", [1 << 64], 0, 0)}), 0, "impossible shape"),
        (header({"a": entry("F32", [2], (1 << 32) + 0, (1 << 32) + 8)}), 8, "gap"),
        (header({"a": entry("F32", [2], 8, 0)}), 8, "has -8 bytes"),
        (header({"a": {**entry("F32", [2], 0, 8), "data_offsets": [0, 8.0]}}), 8, "impossible offsets"),
        (header({"a": {**entry("F32", [2], 0, 8), "data_offsets": [0]}}), 8, "impossible offsets"),
        (header({"a": {**entry("F32", [2], 0, 8), "more": 1}}), 8, "exactly dtype"),
        (header({"a": 5}), 0, "exactly dtype"),
        (header({"a\n": entry("F32", [2], 0, 8)}), 8, "impossible name"),
        (header({"": entry("F32", [2], 0, 8)}), 8, "impossible name"),
        (b'{"a": NaN}', 0, "contains NaN"),
        (b'{"a": 1, "a": 2}', 0, "twice"),
        (b"[" * 100_000, 0, "not readable JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "not readable JSON"),
        (b"[]", 0, "not an object"),
        (b"\xff\xfe", 0, "not readable JSON"),
    ],
)
def test_refuses_what_cannot_be(text: bytes, data: int, says: str) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors") as caught:
        parse(text, data)
    assert says in str(caught.value)


def test_sub_byte_elements_must_fill_whole_bytes() -> None:
    assert parse(header({"a": entry("F4", [4], 0, 2)}), 2)["a"].nbytes == 2
    with pytest.raises(CheckpointError):
        parse(header({"a": entry("F4", [3], 0, 1)}), 1)


def test_a_header_may_be_as_long_as_its_file_allows() -> None:
    length = 126 << 20
    assert header_length("f", 60 << 30, length.to_bytes(8, "little")) == length


@pytest.mark.parametrize(
    ("size", "start", "says"),
    [
        (4, b"abcd", "cannot be a safetensors"),
        (100, (93).to_bytes(8, "little"), "claims a header"),
        (1 << 50, (1 << 40).to_bytes(8, "little"), "claims a header"),
        (100, (0).to_bytes(8, "little"), "no safetensors header"),
        (130, b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git-LFS pointer"),
    ],
)
def test_refuses_impossible_lengths(size: int, start: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        header_length("model.safetensors", size, start)


@given(st.binary(max_size=300), st.integers(0, 1000))
@settings(max_examples=300, deadline=None)
def test_random_bytes_end_in_a_typed_error_or_in_tensors(text: bytes, data: int) -> None:
    with contextlib.suppress(CheckpointError):
        parse(text, data)


def test_damaged_headers_end_in_a_typed_error_or_in_tensors() -> None:
    luck = random.Random(7)
    good = bytearray(header({f"t{i}": entry("F16", [3, 4], 24 * i, 24 * i + 24) for i in range(6)}))
    refused = 0
    for _ in range(2000):
        text = bytearray(good)
        for _ in range(luck.randint(1, 4)):
            place = luck.randrange(len(text))
            match luck.randrange(3):
                case 0:
                    text[place] = luck.randrange(256)
                case 1:
                    del text[place]
                case _:
                    text.insert(place, luck.randrange(32, 127))
        try:
            tensors = parse(bytes(text), 144)
        except CheckpointError:
            refused += 1
        else:
            assert sum(tensor.nbytes for tensor in tensors.values()) == 144
    assert refused > 1000
