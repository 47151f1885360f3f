"""Weights laid out as the kernels read them: panels of 16 rows (integers) or 4 rows (floats), one after
another.

`Packing` is the geometry of one format; `choose` says in which a stored matrix is kept for a choice of
weights; `pack_into` writes the panels. The layouts are those of `integer_tile` and `float_tile`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.arrays import U8
from engine.formats import (
    GROUP,
    BF16Matrix,
    Coding,
    F16Matrix,
    F32Matrix,
    FP8Matrix,
    GroupedBytes,
    MXFP4Blocks,
    MXFP4Matrix,
    StoredMatrix,
)
from engine.kernels.float_tile import FLOAT_BYTES, FLOAT_ROWS
from engine.kernels.integer_tile import SCALE_BYTES, SCALED, block_bytes
from engine.kernels.packing_kernels import pack_codes, pack_floats, pack_rounded
from engine.kernels.stored_groups import CODINGS, SCALED_BY
from engine.kernels.threads import launch

Weights: TypeAlias = Literal["auto", "native", "q8", "q4"]

LAYOUT_VERSION = 3
"""Of what `pack_into` and `pack_expert` write: packed bytes kept on disk are of use only to the same layout."""

INTEGER_ROWS = 16
CHUNK = 16  # columns of the float path
PIECE = 1 << 20  # weights packed at a time
CODING: Mapping[str, Coding] = {"f32": "f32", "f16": "f16", "bf16": "bf16", "fp8": "e4m3"}
"""What floats are packed from without being made others."""
BLANK = {"q8": 128, "q4": 8, "int4": 8, "mxfp4": 0}
"""The packed code of rows and columns that are not there."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How matrices are kept: `kind` q8, q4, int4, mxfp4 (integers) or f32, bf16, f16, fp8 (floats).

    `scale` is the stored type of the scales (f16, bf16, f32, e8m0; "" without). `block`: columns that share
    an fp8 scale.
    """

    kind: str
    scale: str = ""
    block: int = 0

    @property
    def integer(self) -> bool:
        return self.kind not in FLOAT_BYTES

    @property
    def panel_rows(self) -> int:
        return INTEGER_ROWS if self.integer else FLOAT_ROWS

    def panels(self, rows: int) -> int:
        """Panels that `rows` rows take."""
        return -(-rows // self.panel_rows)

    def panel_bytes(self, cols: int) -> int:
        """Bytes a panel of matrices with `cols` columns, a multiple of 64."""
        if self.integer:
            return block_bytes(self.kind, self.scale) * -(-cols // (GROUP * SCALED[self.scale]))
        weights = FLOAT_ROWS * -(-cols // CHUNK) * CHUNK * FLOAT_BYTES[self.kind]
        scales = FLOAT_ROWS * -(-cols // self.block) * 4 if self.kind == "fp8" else 0
        return -(-(weights + scales) // 64) * 64

    def nbytes(self, rows: int, cols: int) -> int:
        """Bytes of a packed matrix."""
        return self.panels(rows) * self.panel_bytes(cols)


def choose(stored: StoredMatrix, weights: Weights) -> Packing:
    """The packing of a stored matrix: as it is stored where the choice allows, else rounded (see
    `engine.formats.groups`).
    """
    if weights == "native":
        for matrix, kind in ((F32Matrix, "f32"), (F16Matrix, "f16"), (BF16Matrix, "bf16")):
            if isinstance(stored, matrix):
                return Packing(kind)
        if isinstance(stored, MXFP4Matrix | MXFP4Blocks):
            return Packing("bf16")  # exact: two bits of mantissa, and the exponents of bfloat16
        if isinstance(stored, FP8Matrix) and stored.block[1] % CHUNK == 0:
            return Packing("fp8", "f32", stored.block[1])
        return Packing("f32")
    kept = stored.stored_as()
    if kept is not None and weights in ("auto", kept[0]):
        return Packing(kept[0], kept[1])
    return Packing("q4" if weights == "q4" else "q8", "f16")


def pack_into(stored: StoredMatrix, packing: Packing, data: U8, start: int = 0, stride: int = 0) -> None:
    """Writes the panels of `stored` to `data`, contiguous uint8: panel p from byte start + p · stride on.

    A `stride` of 0 is a panel's size: one panel after another. ValueError when integers are asked for that are
    neither stored so nor the result of rounding.
    """
    panel_bytes, count = packing.panel_bytes(stored.cols), packing.panels(stored.rows)
    stride = stride or panel_bytes
    panels = np.lib.stride_tricks.as_strided(data[start:], (count, panel_bytes), (stride, 1))
    kept = stored.stored_as() == (packing.kind, packing.scale)
    if packing.integer and not kept and packing.kind not in ("q8", "q4"):
        raise ValueError(
            f"a {type(stored).__name__} cannot be kept as {packing.kind} with {packing.scale} scales"
        )
    # What a panel does not fill is zero, so that bytes depend on weights alone.
    blank = block_bytes(packing.kind, packing.scale) if packing.integer else 64
    panels[:, -blank:] = 0
    if not packing.integer:
        panels[-1:] = 0
    step = max(1, PIECE // (packing.panel_rows * max(1, stored.cols)))
    for first in range(0, count, step):
        row = first * packing.panel_rows
        part = stored.take(row, 1, min(stored.rows - row, step * packing.panel_rows))
        _pack(part.grouped_bytes(), packing, kept, data, start + first * stride, stride)


def _pack(part: GroupedBytes, packing: Packing, kept: bool, data: U8, start: int, stride: int) -> None:
    given = (_flat(part.values), _flat(part.scales), geometry(part))
    with launch(4 * part.rows * part.cols) as threads:
        place = (data, start, stride, threads)
        if not packing.integer:
            as_stored = part.coding == CODING.get(packing.kind)
            pack_floats(*given, as_stored, FLOAT_BYTES[packing.kind], *place)
        elif kept:
            wide = packing.kind == "q8"
            pack_codes(*given, wide, BLANK[packing.kind], SCALE_BYTES[packing.scale], *place)
        else:
            pack_rounded(*given, packing.kind == "q8", *place)


def geometry(part: GroupedBytes) -> tuple[int, ...]:
    """How the kernels find a group: rows, columns, the place of the coding in CODINGS, bytes from row to row and
    from group to group; the place of the scales' type in SCALED_BY, their bytes from row to row and from one to the
    next, groups that share one.
    """
    return (
        part.rows, part.cols, CODINGS.index(part.coding), part.values.strides[0], part.stride,
        SCALED_BY.index(part.scale), part.scales.strides[0], part.scale_stride, part.span,
    )  # fmt: skip


def _flat(lines: U8) -> U8:
    """The memory from the first byte of [rows, bytes] to the last, rows that were left out included."""
    count = (len(lines) - 1) * lines.strides[0] + lines.shape[1] if lines.size else 0
    return np.lib.stride_tricks.as_strided(lines, (count,), (1,), writeable=False)
