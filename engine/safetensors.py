"""The header of a safetensors file, read with suspicion.

A file is: 8 bytes little-endian header length, the header (JSON), the tensors. The header may come from
anybody, so every number in it is checked before it is used: known dtype, shape times item size equal to the
byte range, ranges that follow one another without gap or overlap, and `8 + header + largest offset == file
size`, which is how a file cut short is noticed. Format: https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from engine.errors import CheckpointError

# Bits an element, by the names the format uses.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
LARGEST_HEADER_BYTES = 1 << 30
LONGEST_NAME = 1024
LARGEST_DIMENSIONS = 8
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `nbytes` bytes of `file` from `offset` (from the start of the file).

    `interleaved_heads`: if not 0, the leading dimension is that many heads, and in each the rows of its two
    halves alternate; who reads them gets them in their usual order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    interleaved_heads: int = 0


def refuse_pointer(path: str, start: bytes) -> None:
    """Raises when a file is the placeholder that Git leaves where Git-LFS would have put it."""
    if start.startswith(LFS_POINTER):
        raise CheckpointError(
            f"{path} is a Git-LFS pointer, not the file itself; run `git lfs pull` in the model's directory"
        )


def header_length(path: str, size: int, start: bytes) -> int:
    """The header's length in bytes, from a file's first bytes (at least 8, or the whole file when
    shorter)."""
    refuse_pointer(path, start)
    if size < 8 or len(start) < 8:
        raise CheckpointError(f"{path} has {size} bytes and cannot be a safetensors file; download it again")
    length = int.from_bytes(start[:8], "little")
    if length > size - 8 or length > LARGEST_HEADER_BYTES:
        raise CheckpointError(
            f"{path} claims a header of {length:,} bytes in a file of {size:,}; "
            "it is no safetensors file, or a damaged one"
        )
    if length < 2:
        raise CheckpointError(f"{path} has no safetensors header; download it again")
    return length


def parse_header(path: str, size: int, header: bytes) -> dict[str, TensorInfo]:
    """The tensors of one file of `size` bytes whose header (without its length) is `header`."""
    entries = _strict_object(path, header)
    entries.pop("__metadata__", None)
    base = 8 + len(header)
    tensors = [_tensor(path, base, name, entry) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = base
    for tensor in tensors:
        if tensor.offset != end:
            kind = "overlaps another tensor" if tensor.offset < end else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {tensor.name!r} {kind}; the file is damaged or hostile")
        end += tensor.nbytes
    if end > size:
        raise CheckpointError(
            f"{path} is cut short: its header describes {end:,} bytes, the file has {size:,}; "
            "download it again"
        )
    if end < size:
        raise CheckpointError(
            f"{path} has {size - end:,} bytes after its last tensor; something was appended, "
            "download it again"
        )
    return {tensor.name: tensor for tensor in tensors}


def _strict_object(path: str, header: bytes) -> dict[str, object]:
    def fail(what: str) -> NoReturn:
        raise CheckpointError(f"{path}: the safetensors header {what}; the file is damaged or hostile")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            fail("names something twice")
        return found

    constant: Callable[[str], NoReturn] = lambda text: fail(f"contains {text}")  # noqa: E731
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the safetensors header is not readable JSON ({error})") from None
    if not isinstance(entries, dict):
        fail("is not an object")
    return entries


def _tensor(path: str, base: int, name: str, entry: object) -> TensorInfo:
    def fail(what: str) -> NoReturn:
        raise CheckpointError(f"{path}: tensor {name[:200]!r} {what}; the file is damaged or hostile")

    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        fail("has an impossible name")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        fail("needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        fail(f"has the unknown dtype {str(dtype)[:40]!r}")
    if (
        not isinstance(shape, list)
        or len(shape) > LARGEST_DIMENSIONS
        or not all(_count(side) for side in shape)
    ):
        fail("has an impossible shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_count(offset) for offset in offsets):
        fail("has impossible offsets")
    start, end = offsets
    bits = DTYPE_BITS[dtype]
    for side in shape:
        bits *= side
    if bits % 8 or end - start != bits // 8:
        fail(f"has {end - start:,} bytes, but its shape {shape} in {dtype} takes {bits / 8:,}")
    return TensorInfo(name, dtype, tuple(shape), path, base + start, end - start)


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
