"""Block formats of GGUF files that the integer path takes as they are: Q8_0, Q4_0 and MXFP4, 32 values a
block.

A block of Q8_0 is an f16 scale and 32 int8; of Q4_0 an f16 scale and 16 bytes whose low nibbles are values 0
… 15 and whose high nibbles are values 16 … 31, offset by 8; of MXFP4 an E8M0 scale and 16 bytes of E2M1 in
the same order.
"""

from typing import Self

import numpy as np

from engine.arrays import F32, Array
from engine.formats.codes import E2M1_DOUBLED
from engine.formats.grouped_bytes import Coding, GroupedBytes
from engine.formats.groups import GROUP, GroupKind, Groups, ScaleKind
from engine.formats.stored import FormatError, StoredMatrix, rows_of


class _Blocks(StoredMatrix):
    """`blocks` uint8 [rows, cols / 32 · block_bytes]: the bytes of the file's tensor, a row a line."""

    kind: GroupKind
    coding: Coding
    scale_kind: ScaleKind = "f16"
    block_bytes: int
    scale_bytes = 2

    def __init__(self, blocks: Array) -> None:
        if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] % self.block_bytes:
            raise FormatError(
                f"{type(self).__name__} needs uint8 [rows, n · {self.block_bytes}], not {blocks.dtype} "
                f"{list(blocks.shape)}"
            )
        self.blocks = blocks
        self.rows, self.cols = blocks.shape[0], blocks.shape[1] // self.block_bytes * GROUP

    def _codes(self, values: Array) -> Array:
        """uint8 [rows, groups, bytes a block without the scale] -> int8 [rows, groups, 32]."""
        return np.concatenate([values & 15, values >> 4], 2).view(np.int8) - np.int8(8)

    def stored_as(self) -> tuple[GroupKind, ScaleKind]:
        return self.kind, self.scale_kind

    def groups(self) -> Groups:
        split = self.blocks.reshape(self.rows, -1, self.block_bytes)
        codes = np.ascontiguousarray(self._codes(split[:, :, self.scale_bytes :])).reshape(self.rows, -1)
        scales = np.ascontiguousarray(split[:, :, : self.scale_bytes])
        scales = scales[:, :, 0] if self.scale_kind == "e8m0" else scales.view(np.float16)[:, :, 0]
        return Groups(self.kind, self.scale_kind, self.cols, codes, np.ascontiguousarray(scales))

    def grouped_bytes(self) -> GroupedBytes:
        values, size = self.blocks[:, self.scale_bytes :], self.block_bytes
        return GroupedBytes(self.coding, self.cols, values, size, self.blocks, self.scale_kind, size)

    def f32(self) -> F32:
        return self.groups().f32()

    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Self:
        return type(self)(self.blocks[rows_of(self.rows, first, step, count)])


class Q8Blocks(_Blocks):
    """GGUF Q8_0."""

    kind, coding, block_bytes = "q8", "int8", 34

    def _codes(self, values: Array) -> Array:
        return values.view(np.int8)


class Q4Blocks(_Blocks):
    """GGUF Q4_0."""

    kind, coding, block_bytes = "q4", "int4_halves", 18


class MXFP4Blocks(_Blocks):
    """GGUF MXFP4."""

    kind, coding, block_bytes = "mxfp4", "e2m1_halves", 17
    scale_kind, scale_bytes = "e8m0", 1

    def _codes(self, values: Array) -> Array:
        codes: Array = E2M1_DOUBLED[np.concatenate([values & 15, values >> 4], 2)]
        return codes
