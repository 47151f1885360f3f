"""Names for the array types of the engine, and memory aligned for vector loads."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
F32: TypeAlias = npt.NDArray[np.float32]
I32: TypeAlias = npt.NDArray[np.int32]
U8: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

ALIGNMENT = 64  # bytes; one cache line, and one AVX-512 load
SMALL_BYTES = 1 << 18


def aligned_bytes(count: int) -> U8:
    """`count` bytes of memory, uninitialised, starting on a multiple of `ALIGNMENT`."""
    block = np.empty(count + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + count]


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An uninitialised array; a large one starts on a multiple of `ALIGNMENT`.

    A token's own rows are small: finding them an aligned place would take longer than it saves.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < SMALL_BYTES:
        return np.empty(shape, kind)
    return aligned_bytes(size).view(kind).reshape(shape)


def joined(arrays: Sequence[Array]) -> Array:
    """Arrays one below the other; a single one as it is."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def address_of(array: Any) -> int:
    """Where an array begins, for kernels that are told so; cheaper than `array.ctypes`."""
    return int(array.__array_interface__["data"][0])
