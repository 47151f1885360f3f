"""MXFP4: E2M1 values in groups of 32 with an E8M0 scale, in the layouts found on the hub.

All of them keep two values a byte, low nibble first, and scales of 2 ** (code - 127):

- gpt-oss: `blocks` uint8 [rows, groups, 16], `scales` uint8 [rows, groups];
- DeepSeek-V4: `weight` int8 [rows, cols / 2], `scale` uint8 [rows, cols / 32];
- compressed-tensors: `weight_packed` uint8 [rows, cols / 2], `weight_scale` uint8 [rows, cols / 32].
"""

from typing import Self

import numpy as np

from engine.arrays import F32, Array
from engine.formats.codes import E2M1_DOUBLED, nibbles
from engine.formats.grouped_bytes import GroupedBytes, grouped
from engine.formats.groups import GROUP, GroupKind, Groups, ScaleKind
from engine.formats.stored import FormatError, StoredMatrix, rows_of


class MXFP4Matrix(StoredMatrix):
    """`packed` uint8 or int8 [rows, cols / 2] or [rows, groups, 16]; `scales` uint8 [rows, ceil(cols /
    32)].
    """

    def __init__(self, packed: Array, scales: Array) -> None:
        if packed.ndim == 3 and packed.shape[2] == GROUP // 2:
            packed = packed.reshape(packed.shape[0], -1)
        if packed.ndim != 2 or packed.dtype not in (np.uint8, np.int8):
            raise FormatError(f"MXFP4 values cannot be stored as {packed.dtype} {list(packed.shape)}")
        self.rows, self.cols = packed.shape[0], 2 * packed.shape[1]
        if scales.dtype != np.uint8 or scales.shape != (self.rows, -(-self.cols // GROUP)):
            raise FormatError(
                f"MXFP4 weights [{self.rows}, {self.cols}] cannot have scales "
                f"{scales.dtype} {list(scales.shape)}"
            )
        self.packed, self.scales = packed, scales

    def stored_as(self) -> tuple[GroupKind, ScaleKind]:
        return "mxfp4", "e8m0"

    def groups(self) -> Groups:
        codes = np.zeros((self.rows, self.scales.shape[1] * GROUP), np.int8)
        codes[:, : self.cols] = E2M1_DOUBLED[nibbles(self.packed)]
        return Groups("mxfp4", "e8m0", self.cols, codes, np.ascontiguousarray(self.scales))

    def grouped_bytes(self) -> GroupedBytes:
        return grouped("e2m1", self.cols, self.packed, self.scales, "e8m0")

    def f32(self) -> F32:
        return self.groups().f32()

    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Self:
        rows = rows_of(self.rows, first, step, count)
        return type(self)(self.packed[rows], self.scales[rows])
