"""Weights laid out as the kernels read them: panels of 16 rows (integers) or 4 rows (floats), one after
another.

`Packing` is the geometry of one format; `choose` says in which a stored matrix is kept for a choice of
weights; `pack_into` writes the panels. The layouts are those of `integer_tile` and `float_tile`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.arrays import U8, Array
from engine.formats import (
    GROUP,
    BF16Matrix,
    F16Matrix,
    F32Matrix,
    FP8Matrix,
    Groups,
    Int4Matrix,
    MXFP4Blocks,
    MXFP4Matrix,
    StoredMatrix,
    f32_to_bf16,
)  # fmt: skip
from engine.formats.codes import E2M1_DOUBLED
from engine.kernels.float_tile import FLOAT_BYTES, FLOAT_ROWS
from engine.kernels.integer_tile import SCALE_BYTES, SCALED, block_bytes, weight_bytes
from engine.kernels.packing_kernels import pack_nibbles, pack_rounded
from engine.kernels.threads import launch

Weights: TypeAlias = Literal["auto", "native", "q8", "q4"]

LAYOUT_VERSION = 2
"""Of what `pack_into` and `pack_expert` write: packed bytes kept on disk are of use only to the same layout."""

INTEGER_ROWS = 16
CHUNK = 16  # columns of the float path


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

    A `stride` of 0 is a panel's size: one panel after another.
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
    if packing.integer and kept and isinstance(stored, Int4Matrix | MXFP4Matrix):
        with launch(4 * stored.rows * stored.cols) as threads:
            pack_nibbles(
                *_nibbles(stored), SCALE_BYTES[packing.scale], 0 if packing.kind == "mxfp4" else 8,
                stored.rows, stored.cols, data, start, stride, threads,
            )  # fmt: skip
        return
    step = max(1, (4 << 20) // (packing.panel_rows * max(1, stored.cols)))
    for first in range(0, len(panels), step):
        some = panels[first : first + step]
        row = first * packing.panel_rows
        part = stored.take(row, 1, min(stored.rows - row, len(some) * packing.panel_rows))
        if not packing.integer:
            _float_panels(part, packing, some)
        elif kept:
            groups = part.groups()
            assert groups is not None, "what is stored in groups has groups"
            _integer_panels(groups, packing, some)
        else:
            values, kind = _floats(part)
            with launch(4 * stored.rows * stored.cols) as threads:
                pack_rounded(
                    np.ascontiguousarray(values).reshape(-1), kind, part.rows, part.cols,
                    packing.kind == "q8", data, start + first * stride, stride, threads,
                )  # fmt: skip


def _floats(stored: StoredMatrix) -> tuple[Array, int]:
    """The values and how `widen_group` names their type."""
    if isinstance(stored, BF16Matrix):
        return stored.values, 1
    if isinstance(stored, F16Matrix):
        return stored.values.view(np.uint16), 2
    return stored.f32(), 0


def _nibbles(stored: Int4Matrix | MXFP4Matrix) -> tuple[U8, U8]:
    """Codes uint8 [rows, bytes] and scales uint8 [rows, bytes], a scale for each 32 columns."""
    scales = stored.scales
    if isinstance(stored, Int4Matrix) and stored.group_size != GROUP:
        scales = np.repeat(scales, stored.group_size // GROUP, axis=1)[:, : -(-stored.cols // GROUP)]
    return np.ascontiguousarray(stored.packed).view(np.uint8), np.ascontiguousarray(scales).view(np.uint8)


E2M1_CODE = np.zeros(256, np.uint8)
E2M1_CODE[E2M1_DOUBLED.view(np.uint8)[::-1]] = np.arange(15, -1, -1)


def _integer_panels(groups: Groups, packing: Packing, panels: U8) -> None:
    count, rows = groups.scales.shape[1], len(panels) * INTEGER_ROWS
    codes = np.zeros((rows, count * GROUP), np.uint8)
    signed = groups.codes.view(np.uint8)
    if packing.kind == "mxfp4":
        codes[: groups.rows] = E2M1_CODE[signed]
    else:
        codes += np.uint8(128 if packing.kind == "q8" else 8)
        codes[: groups.rows] += signed
    steps = codes.reshape(len(panels), INTEGER_ROWS, count, 8, 4).transpose(0, 2, 3, 1, 4)
    if packing.kind != "q8":
        steps = steps[:, :, :4] | (steps[:, :, 4:] << 4)
    scales = np.zeros((rows, count), groups.scales.dtype)
    scales[: groups.rows] = groups.scales
    turned = np.ascontiguousarray(scales.reshape(len(panels), INTEGER_ROWS, count).transpose(0, 2, 1))
    lines, size = turned.view(np.uint8), weight_bytes(packing.kind)
    scaled, block = SCALED[packing.scale], block_bytes(packing.kind, packing.scale)
    for g in range(count):
        start, place = g // scaled * block, g % scaled
        panels[:, start + place * size : start + (place + 1) * size] = steps[:, g].reshape(-1, size)
        at = start + scaled * size + place * (64 // scaled)
        panels[:, at : at + 64 // scaled] = lines[:, g]


def _float_values(stored: StoredMatrix, packing: Packing) -> Array:
    if isinstance(stored, F32Matrix | F16Matrix | BF16Matrix):
        return stored.values
    if isinstance(stored, FP8Matrix) and packing.kind == "fp8":
        return stored.codes
    values = stored.f32()
    return f32_to_bf16(values) if packing.kind == "bf16" else values


def _float_panels(stored: StoredMatrix, packing: Packing, panels: U8) -> None:
    values = _float_values(stored, packing)
    chunks, rows = -(-stored.cols // CHUNK), len(panels) * FLOAT_ROWS
    padded = np.zeros((rows, chunks * CHUNK), values.dtype)
    padded[: stored.rows, : stored.cols] = values
    turned = np.ascontiguousarray(
        padded.reshape(len(panels), FLOAT_ROWS, chunks, CHUNK).transpose(0, 2, 1, 3)
    )
    end = chunks * CHUNK * FLOAT_ROWS * values.itemsize
    panels[:, :end] = turned.view(np.uint8).reshape(len(panels), -1)
    if isinstance(stored, FP8Matrix) and packing.kind == "fp8":
        scales = np.zeros((rows, -(-stored.cols // packing.block)), np.float32)
        scales[: stored.rows] = stored.f32_scales()
        grouped = scales.reshape(len(panels), -1)
        panels[:, end : end + 4 * grouped.shape[1]] = grouped.view(np.uint8)
