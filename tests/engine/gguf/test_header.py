"""Headers of GGUF files: what is read, and that every hostile or damaged one is refused with a typed error."""

import contextlib
import random
import struct
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.gguf.header import Header, MoreNeeded, parse_header
from tests.engine.gguf.writer import gguf_bytes, text

METADATA = {
    "general.architecture": "olmoe",
    "a.number": 7,
    "a.ratio": 0.5,
    "a.flag": True,
    "a.texts": ["one", "", "drei"],
    "a.numbers": [1, -2, 3],
}
TENSORS = {
    "first": ("F32", (2, 3), bytes(24)),
    "blocks": ("Q8_0", (4, 64), bytes(4 * 68)),
    "small": ("MXFP4", (1, 2, 32), bytes(34)),
}


def parse(data: bytes) -> Header:
    return parse_header("model.gguf", len(data), data)


def test_reads_metadata_and_tensors_with_their_place_in_the_file() -> None:
    data = gguf_bytes(METADATA, TENSORS)
    header = parse(data)
    assert header.metadata == METADATA
    assert [(tensor.name, tensor.kind.name, tensor.shape, tensor.nbytes) for tensor in header.tensors] == [
        ("first", "F32", (2, 3), 24),
        ("blocks", "Q8_0", (4, 64), 272),
        ("small", "MXFP4", (1, 2, 32), 34),
    ]
    assert all(tensor.offset % 32 == 0 for tensor in header.tensors)
    assert header.tensors[-1].offset + 64 == len(data)


def test_a_header_given_in_part_asks_for_more_and_never_for_more_than_there_is() -> None:
    data = gguf_bytes(METADATA, TENSORS)
    whole = parse(data)
    needed = whole.tensors[0].offset
    for length in range(needed - 31):  # padding may follow
        with pytest.raises(MoreNeeded) as more:
            parse_header("model.gguf", len(data), data[:length])
        assert length < more.value.length <= needed
    assert parse_header("model.gguf", len(data), data[:needed]).tensors == whole.tensors


def test_a_file_cut_anywhere_is_refused() -> None:
    data = gguf_bytes(METADATA, TENSORS)
    for length in range(len(data) - 31):
        with pytest.raises(CheckpointError):
            parse(data[:length])


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "x") -> bytes:
    sides = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return text(name) + sides + struct.pack("<IQ", kind, offset)


def file(*described: bytes, keys: bytes = b"", count: int = 0, version: int = 3, body: int = 64) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(described), count) + keys + b"".join(described)
    return head + bytes(-len(head) % 32 + body)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GGML" + bytes(60), "does not begin with GGUF"),
        (b"version https://git-lfs.github.com/spec/v1", "Git-LFS"),
        (file(version=1), "version 1"),
        (file(version=3 << 24), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "not believable"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 17, 0), "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62) + bytes(40), "a name of"),
        (file(keys=text("k") + struct.pack("<IQ", 8, 1 << 62), count=1), "cut short"),
        (file(keys=text("k") + struct.pack("<IIQ", 9, 8, 1 << 60), count=1), "cut short"),
        (file(keys=text("k") + struct.pack("<IIQ", 9, 4, 1 << 60), count=1), "cut short"),
        (file(keys=text("k") + struct.pack("<IIQ", 9, 9, 1), count=1), "array of type 9"),
        (file(keys=text("k") + struct.pack("<I", 77), count=1), "type 77"),
        (file(keys=text("k") + struct.pack("<IB", 7, 2), count=1), "neither"),
        (file(keys=(text("k") + struct.pack("<II", 4, 1)) * 2, count=2), "twice"),
        (file(keys=text("a\n") + struct.pack("<II", 4, 1), count=1), "printed"),
        (file(keys=text("general.alignment") + struct.pack("<II", 4, 33), count=1), "alignment"),
        (file(tensor((2, 2)), tensor((2, 2), offset=0, name="y")), "overlaps"),
        (file(tensor((2, 2)), tensor((2, 2), offset=32)), "twice"),
        (file(tensor((2, 2)), tensor((2, 2), offset=64, name="y"), body=128), "leaves a gap"),
        (file(tensor((1 << 40, 1 << 40))), "describes tensor"),
        (file(tensor(((1 << 32) + 2, 4))), "describes tensor"),
        (file(tensor((1 << 62, 4))), "describes tensor"),
        (file(tensor((1 << 32, 1 << 32, 2))), "describes tensor"),
        (file(tensor((1 << 31, 2), kind=1)), "describes tensor"),
        (file(tensor((2, 2), offset=1 << 32)), "leaves a gap"),
        (file(tensor((2, 33), kind=8)), "describes tensor"),
        (file(tensor((200, 3))), "cut short"),
        (file(tensor((2, 2)), body=640), "after its last tensor"),
        (file(tensor((2, 2, 2, 2, 2))), "5 dimensions"),
        (file(tensor((2, 2), kind=12)), "stores tensors as Q4_K, which"),
        (file(tensor((2, 2), kind=99)), "type 99"),
    ],
)
def test_hostile_and_damaged_files_are_refused_by_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        parse(data)


def test_any_bytes_are_read_or_refused_with_a_typed_error() -> None:
    luck = random.Random(1)
    data = gguf_bytes(METADATA, TENSORS)
    edges: list[Any] = [0, 1, 0x7F, 0x80, 0xFF]
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(luck.randint(1, 4)):
            changed[luck.randrange(len(changed))] = luck.choice([*edges, luck.randrange(256)])
        start = luck.randrange(len(changed) - 8)
        if luck.random() < 0.3:
            changed[start : start + 8] = struct.pack("<Q", luck.choice([1 << 63, (1 << 64) - 1, 1 << 32, 0]))
        with contextlib.suppress(CheckpointError):
            parse(bytes(changed[: luck.randint(1, len(changed))] if luck.random() < 0.2 else changed))
