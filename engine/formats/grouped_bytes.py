"""Where the values of a stored matrix lie in memory, 32 columns after another: what the packing kernels read.

A format describes its bytes in this one way; kernels know codings, not formats.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.arrays import U8, Array
from engine.formats.groups import GROUP, ScaleKind

Coding: TypeAlias = Literal[
    "f32", "f16", "bf16", "e4m3", "int8", "int4", "int4_halves", "e2m1", "e2m1_halves"
]
"""How a value is stored. int4 is offset by 8. Codes of 4 bits lie two a byte: neighbours, the first of them low;
"halves": value i of a group low in byte i, value 16 + i high. The e2m1 codings stand for twice the value."""

BYTES: dict[Coding, int] = {
    "f32": 128, "f16": 64, "bf16": 64, "e4m3": 32, "int8": 32, "int4": 16, "int4_halves": 16, "e2m1": 16,
    "e2m1_halves": 16,
}  # fmt: skip
"""Bytes of the values of a group."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedBytes:
    """A matrix [rows, cols]: group g of a row is `BYTES[coding]` bytes of `values` from byte g · `stride` on.

    Its values are multiplied by the scale (of type `scale`; "": there is none) at byte (g // span) · `scale_stride` of
    `scales`; an e8m0 scale counts half. Both arrays are uint8 [rows, bytes], contiguous along a row. What a last group
    holds beyond `cols` is undefined.
    """

    coding: Coding
    cols: int
    values: U8
    stride: int
    scales: U8
    scale: ScaleKind | Literal[""] = ""
    scale_stride: int = 0
    span: int = 1

    @property
    def rows(self) -> int:
        return len(self.values)


def grouped(
    coding: Coding, cols: int, values: Array, scales: Array | None = None, scale: ScaleKind | Literal[""] = "",
    span: int = 1,
) -> GroupedBytes:  # fmt: skip
    """Of values [rows, n] and scales [rows, m] that are arrays of their own; copied only where a row is not
    contiguous or its last group is cut short."""
    lines, stride = _bytes(values), BYTES[coding]
    whole = -(-cols // GROUP) * stride
    if lines.shape[1] < whole:
        filled = np.zeros((len(lines), whole), np.uint8)
        filled[:, : lines.shape[1]] = lines
        lines = filled
    if scales is None:
        return GroupedBytes(coding, cols, lines, stride, np.empty((len(lines), 0), np.uint8))
    return GroupedBytes(coding, cols, lines, stride, _bytes(scales), scale, scales.itemsize, span)


def _bytes(array: Array) -> U8:
    """[rows, n] as uint8 [rows, bytes]."""
    if array.shape[1] > 1 and array.strides[1] != array.itemsize:
        array = np.ascontiguousarray(array)
    return array.view(np.uint8)
