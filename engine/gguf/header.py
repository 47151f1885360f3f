"""The header of a GGUF file, read with suspicion.

A file is: the magic "GGUF", a version, two counts, typed metadata, a description of each tensor, padding, the tensors.
Every number is checked before it is used, against the file's size and our own limits, so that no count makes us
allocate more than the file could hold. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions
2 and 3, little-endian).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from engine.errors import CheckpointError
from engine.safetensors import LONGEST_NAME, refuse_pointer

MAGIC = b"GGUF"
LARGEST_HEADER_BYTES = 1 << 28
MOST_TENSORS = 1 << 18
MOST_KEYS = 1 << 14
MOST_SIDES = 4
LARGEST_ALIGNMENT = 1 << 20

Value = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]
SCALARS: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(code)
    for number, code in {
        0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip
BOOLEAN, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class Kind:
    """How a tensor's values are stored: `values` of them in a block of `nbytes` bytes."""

    name: str
    values: int
    nbytes: int


KINDS: Mapping[int, Kind] = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2),
    2: Kind("Q4_0", 32, 18),
    8: Kind("Q8_0", 32, 34),
    30: Kind("BF16", 1, 2),
    39: Kind("MXFP4", 32, 17),
}
TABLES: Mapping[int, Kind] = {26: Kind("I32", 1, 4)}
"""Of numbers that are no weights, such as which experts a token goes to."""
# What other files hold, so that it can be refused by name.
OTHER_KINDS: Mapping[int, str] = {
    3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    40: "NVFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: `shape` outermost first, in values; `nbytes` bytes from `offset` of the file."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself, in the types that JSON has."""

    metadata: Mapping[str, Value]
    tensors: Sequence[Tensor]


class MoreNeeded(Exception):
    """The header goes on after the bytes that were given; at least `length` bytes from the start are needed."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


def parse_header(path: str, size: int, data: bytes) -> Header:
    """The header of a file of `size` bytes that begins with `data`.

    Raises:
        MoreNeeded: the header is longer than `data`, and the file longer too.
        CheckpointError: it is damaged or hostile, or the tensors are stored in a way that is not read.
    """
    refuse_pointer(path, data)
    read = _Bytes(path, size, data)
    if bytes(read.take(4)) != MAGIC:
        read.fail("does not begin with GGUF; it is no GGUF file")
    version = read.number("<I")
    if version not in (2, 3):
        big = version and version & 0xFFFF == 0
        read.fail(
            "is written for big-endian machines" if big else f"has version {version}; 2 and 3 are known"
        )
    tensor_count, key_count = read.number("<Q"), read.number("<Q")
    if tensor_count > MOST_TENSORS or key_count > MOST_KEYS:
        read.fail(f"claims {tensor_count:,} tensors and {key_count:,} keys, which is not believable")
    read.expect(24 * tensor_count + 13 * key_count)  # what they take at least
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = read.name()
        if key in metadata:
            read.fail(f"gives {key!r} twice")
        metadata[key] = read.value(key)
    described = [_describe(read) for _ in range(tensor_count)]
    return Header(metadata, _place(read, described, _alignment(read, metadata)))


def _describe(read: "_Bytes") -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (outermost first), number of the kind, and offset from the first tensor."""
    name = read.name()
    count = read.number("<I")
    if not 1 <= count <= MOST_SIDES:
        read.fail(f"gives tensor {name!r} {count} dimensions")
    shape = tuple(read.number("<Q") for _ in range(count))[::-1]
    return name, shape, read.number("<I"), read.number("<Q")


def _alignment(read: "_Bytes", metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 1 <= value <= LARGEST_ALIGNMENT or value & (value - 1):
        read.fail(f"asks for an alignment of {str(value)[:40]}")
    return value


def _place(
    read: "_Bytes", described: Sequence[tuple[str, tuple[int, ...], int, int]], alignment: int
) -> tuple[Tensor, ...]:
    """The tensors in the order of their bytes; checks that these neither overlap, nor leave gaps, nor miss."""
    known = {**KINDS, **TABLES}
    refused = sorted(
        {OTHER_KINDS.get(kind, f"type {kind}") for _, _, kind, _ in described if kind not in known}
    )
    if refused:
        raise CheckpointError(
            f"{read.path} stores tensors as {', '.join(refused[:8])}, which this engine does not read; it reads "
            f"{', '.join(kind.name for kind in KINDS.values())}: get the model in one of these"
        )
    end = base = -(-read.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, shape, number, offset in sorted(described, key=lambda entry: entry[3]):
        kind, blocks = known[number], 1
        for side in shape:
            blocks *= side
        if shape[-1] % kind.values or blocks > read.size * 32 or name in tensors:
            read.fail(
                f"describes tensor {name!r} of shape {list(shape)} in {kind.name}, or describes it twice"
            )
        nbytes = blocks // kind.values * kind.nbytes
        if base + offset != -(-end // alignment) * alignment:
            read.fail(f"places tensor {name!r} where it overlaps another one or leaves a gap")
        end = base + offset + nbytes
        if end > read.size:
            raise CheckpointError(
                f"{read.path} is cut short: tensor {name!r} ends at byte {end:,}, the file at {read.size:,}; "
                "download it again"
            )
        tensors[name] = Tensor(name, kind, shape, base + offset, nbytes)
    if read.size - end >= max(alignment, base - read.position + 1):
        read.fail(f"has {read.size - end:,} bytes after its last tensor")
    return tuple(tensors.values())


class _Bytes:
    """Takes a header apart from front to back."""

    def __init__(self, path: str, size: int, data: bytes) -> None:
        self.path = path
        self.size = size
        self.position = 0
        self._data = memoryview(data)

    def fail(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self.path} {what}; the file is damaged or hostile, download it again")

    def expect(self, length: int) -> None:
        """Raises unless the file has `length` more bytes."""
        end = self.position + length
        if end > self.size:
            self.fail(f"is cut short, or claims more than its {self.size:,} bytes can hold")
        if end > LARGEST_HEADER_BYTES:
            self.fail(f"claims a header of more than {LARGEST_HEADER_BYTES:,} bytes")

    def take(self, length: int) -> memoryview:
        self.expect(length)
        end = self.position + length
        if end > len(self._data):
            raise MoreNeeded(end)
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def number(self, code: str) -> int:
        return int(struct.unpack(code, self.take(struct.calcsize(code)))[0])

    def name(self) -> str:
        length = self.number("<Q")
        if not 0 < length <= LONGEST_NAME:
            self.fail(f"has a name of {length:,} bytes")
        try:
            name = str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            self.fail("has a name that is not text")
        if not name.isprintable():
            self.fail("has a name that cannot be printed")
        return name

    def text(self) -> str:
        return str(self.take(self.number("<Q")), "utf-8", "replace")

    def value(self, key: str) -> Value:
        """A value with its type before it."""
        kind = self.number("<I")
        if kind == STRING:
            return self.text()
        if kind == BOOLEAN:
            return bool(self.array(key, BOOLEAN, 1)[0])
        if kind in SCALARS:
            return self.array(key, kind, 1)[0]
        if kind != ARRAY:
            self.fail(f"gives {key!r} the type {kind}, which does not exist")
        inner, count = self.number("<I"), self.number("<Q")
        if inner == STRING:
            self.expect(8 * count)
            return [self.text() for _ in range(count)]
        return self.array(key, inner, count)

    def array(self, key: str, kind: int, count: int) -> list[int] | list[float]:
        """`count` numbers of one type, or truth values."""
        dtype = np.dtype(np.uint8) if kind == BOOLEAN else SCALARS.get(kind)
        if dtype is None:
            self.fail(f"makes {key!r} an array of type {kind}, which is not known")
        values = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if kind == BOOLEAN and values.max(initial=0) > 1:
            self.fail(f"gives {key!r} a truth value that is neither")
        found: list[int] = (values.astype(np.bool_) if kind == BOOLEAN else values).tolist()
        return found
