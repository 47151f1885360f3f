"""Compressed-tensors "pack-quantized" int4: eight values an int32, lowest bits first, each offset by 8,
symmetric.

`weight_packed` int32 [rows, cols / 8], `weight_scale` [rows, cols / group_size] in bfloat16, f16 or f32.
Group sizes that are multiples of 32 are read as groups of 32 that repeat the scale.
"""

from typing import Self

import numpy as np

from engine.arrays import F32, Array
from engine.formats.codes import nibbles
from engine.formats.grouped_bytes import GroupedBytes, grouped
from engine.formats.groups import GROUP, GroupKind, Groups, ScaleKind
from engine.formats.stored import FormatError, StoredMatrix, rows_of

SCALE_KINDS: dict[np.dtype[np.generic], ScaleKind] = {
    np.dtype(np.float16): "f16",
    np.dtype(np.uint16): "bf16",
    np.dtype(np.float32): "f32",
}


class Int4Matrix(StoredMatrix):
    """`packed` int32 [rows, ceil(cols / 8)], `scales` [rows, ceil(cols / group_size)]; uint16 scales are
    bfloat16.
    """

    def __init__(self, packed: Array, scales: Array, cols: int, group_size: int = GROUP) -> None:
        self.rows, self.cols = packed.shape[0], cols
        if packed.dtype != np.int32 or packed.shape[1] != -(-cols // 8):
            raise FormatError(
                f"int4 weights of {cols} columns cannot be packed as {packed.dtype} {list(packed.shape)}; "
                f"int32 [rows, {-(-cols // 8)}] is expected"
            )
        if group_size < GROUP or group_size % GROUP:
            raise FormatError(
                f"int4 groups of {group_size} columns are not supported; multiples of {GROUP} are"
            )
        if scales.dtype not in SCALE_KINDS or scales.shape != (self.rows, -(-cols // group_size)):
            raise FormatError(
                f"int4 weights [{self.rows}, {cols}] in groups of {group_size} cannot have scales "
                f"{scales.dtype} {list(scales.shape)}"
            )
        self.packed, self.scales, self.group_size = packed, scales, group_size

    def stored_as(self) -> tuple[GroupKind, ScaleKind]:
        return "int4", SCALE_KINDS[self.scales.dtype]

    def groups(self) -> Groups:
        count = -(-self.cols // GROUP)
        codes = np.zeros((self.rows, count * GROUP), np.int8)
        stored = nibbles(np.ascontiguousarray(self.packed)).view(np.int8)[:, : self.cols]
        codes[:, : self.cols] = stored - np.int8(8)
        scales = np.repeat(self.scales, self.group_size // GROUP, axis=1)[:, :count]
        return Groups("int4", SCALE_KINDS[scales.dtype], self.cols, codes, np.ascontiguousarray(scales))

    def grouped_bytes(self) -> GroupedBytes:
        scale, span = SCALE_KINDS[self.scales.dtype], self.group_size // GROUP
        return grouped("int4", self.cols, self.packed, self.scales, scale, span)

    def f32(self) -> F32:
        return self.groups().f32()

    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Self:
        rows = rows_of(self.rows, first, step, count)
        return type(self)(self.packed[rows], self.scales[rows], self.cols, self.group_size)
