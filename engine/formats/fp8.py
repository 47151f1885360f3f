"""E4M3 weights with one scale a block, as DeepSeek-V3 and its like release them ("weight",
"weight_scale_inv").

Element [i, j] is multiplied by scale [i // 128, j // 128], also where the sides are not multiples of 128.
Scales are f32, bfloat16 (as uint16 bits) or E8M0 (as uint8).
"""

from typing import Self

import numpy as np

from engine.arrays import F32, Array
from engine.formats.codes import E4M3, bf16_to_f32, e8m0_to_f32
from engine.formats.grouped_bytes import GroupedBytes, grouped
from engine.formats.groups import GROUP
from engine.formats.stored import FormatError, StoredMatrix, rows_of


def scales_to_f32(scales: Array) -> F32:
    """f32 as it is, uint16 as bfloat16, uint8 as E8M0, float16 widened."""
    if scales.dtype == np.uint16:
        return bf16_to_f32(scales)
    return e8m0_to_f32(scales) if scales.dtype == np.uint8 else scales.astype(np.float32)


class FP8Matrix(StoredMatrix):
    """`codes` uint8 [rows, cols], `scales` [ceil(rows / block[0]), ceil(cols / block[1])].

    `picked` are the rows' numbers in the matrix to which the scales belong, when rows were taken from a
    larger one.
    """

    def __init__(
        self, codes: Array, scales: Array, block: tuple[int, int] = (128, 128), picked: Array | None = None
    ) -> None:
        self.rows, self.cols = codes.shape
        picked = np.arange(self.rows) if picked is None else picked
        whole = (int(picked[-1]) if self.rows else 0, self.cols - 1)
        if codes.dtype != np.uint8 or scales.ndim != 2 or scales.shape[1] != whole[1] // block[1] + 1:
            raise FormatError(
                f"an FP8 matrix {list(codes.shape)} ({codes.dtype}) with blocks {list(block)} cannot have "
                f"scales {list(scales.shape)}"
            )
        if scales.shape[0] <= whole[0] // block[0]:
            raise FormatError(
                f"scales {list(scales.shape)} do not cover row {whole[0]} in blocks of {block[0]} rows"
            )
        if block[1] % GROUP and block[1] < self.cols:
            raise FormatError(
                f"FP8 blocks of {block[1]} columns are not supported; multiples of {GROUP} and whole rows are"
            )
        self.codes, self.scales, self.block, self.picked = codes, scales, block, picked

    def f32_scales(self) -> F32:
        """One scale a row and block of columns, f32 [rows, ceil(cols / block[1])]."""
        return scales_to_f32(self.scales)[self.picked // self.block[0]]

    def f32(self) -> F32:
        wide = np.repeat(self.f32_scales(), self.block[1], axis=1)[:, : self.cols]
        return np.asarray(E4M3[self.codes] * wide, np.float32)

    def grouped_bytes(self) -> GroupedBytes:
        span = -(-self.block[1] // GROUP)
        return grouped("e4m3", self.cols, self.codes, self.f32_scales(), "f32", span)

    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Self:
        rows = rows_of(self.rows, first, step, count)
        return type(self)(self.codes[rows], self.scales, self.block, self.picked[rows])
