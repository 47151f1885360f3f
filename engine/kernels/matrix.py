"""A packed matrix (or several on the same input, stacked), and its product with activation rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import F32, U8, Array, aligned
from engine.formats import GROUP, StoredMatrix
from engine.kernels.matmul_float import float_matmul
from engine.kernels.matmul_integer import integer_matmul
from engine.kernels.packing import CHUNK, Packing, Weights, choose, pack_into
from engine.kernels.rows import Rows, quantize_rows
from engine.kernels.threads import launch
from engine.memory import lasting_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Packed weights [rows, cols] = [outputs, inputs]. `parts`: rows of each matrix when several are
    stacked.
    """

    packing: Packing
    rows: int
    cols: int
    data: U8
    parts: tuple[int, ...]
    places: Array  # int64 [panels, 4]: where a panel's outputs go, see `integer_matmul`

    @property
    def format(self) -> str:
        return self.packing.kind

    @property
    def integer(self) -> bool:
        """Whether activations are rounded to int8 (the integer path)."""
        return self.packing.integer

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def _places(parts: Sequence[int], panel_rows: int) -> Array:
    lines = []
    before = 0
    for rows in parts:
        lines += [(before, rows, row, min(panel_rows, rows - row)) for row in range(0, rows, panel_rows)]
        before += rows
    return np.array(lines, np.int64).reshape(-1, 4)


def pack(stored: StoredMatrix | Sequence[StoredMatrix], weights: Weights = "auto") -> Matrix:
    """Packs a stored matrix, or several that take the same input (q, k, v): one launch then computes all.

    Stacked matrices must be kept in one format; ValueError when they differ in columns or format.
    """
    matrices = [stored] if isinstance(stored, StoredMatrix) else list(stored)
    packings = [choose(matrix, weights) for matrix in matrices]
    cols = matrices[0].cols
    if any(packing != packings[0] for packing in packings) or any(matrix.cols != cols for matrix in matrices):
        described = ", ".join(
            f"{p.kind} [{m.rows}, {m.cols}]" for p, m in zip(packings, matrices, strict=True)
        )
        raise ValueError(f"matrices cannot be stacked unless formats and columns are the same: {described}")
    packing = packings[0]
    sizes = [packing.nbytes(matrix.rows, cols) for matrix in matrices]
    data = lasting_bytes(sum(sizes))
    start = 0
    for matrix, size in zip(matrices, sizes, strict=True):
        pack_into(matrix, packing, data[start : start + size])
        start += size
    parts = tuple(matrix.rows for matrix in matrices)
    return Matrix(packing, sum(parts), cols, data, parts, _places(parts, packing.panel_rows))


def stackable(stored: Sequence[StoredMatrix], weights: Weights) -> bool:
    """Whether `pack` takes these matrices together."""
    return len({(choose(matrix, weights), matrix.cols) for matrix in stored}) == 1


def padded_columns(x: F32) -> F32:
    """x [N, K] contiguous with K filled up with zeros to a multiple of 16, as the float tile reads it."""
    cols = x.shape[1]
    if cols % CHUNK == 0:
        return np.ascontiguousarray(x, np.float32)
    wide = np.zeros((len(x), -(-cols // CHUNK) * CHUNK), np.float32)
    wide[:, :cols] = x
    return wide


def _run(x: F32 | Rows, w: Matrix, out: F32) -> None:
    given_rows = len(x)
    given = x.cols if isinstance(x, Rows) else x.shape[1]
    if given != w.cols:
        raise ValueError(f"rows of {given} columns cannot be multiplied with a matrix [{w.rows}, {w.cols}]")
    panel_bytes, work = w.packing.panel_bytes(w.cols), given_rows * w.rows * w.cols
    if w.integer:
        rows = x if isinstance(x, Rows) else quantize_rows(x)
        run = integer_matmul(w.packing.kind, w.packing.scale)
        with launch(work) as count:
            run(
                w.data,
                panel_bytes,
                -(-w.cols // GROUP),
                w.places,
                rows.q,
                rows.scale,
                rows.sums,
                out,
                count,
            )
        return
    if isinstance(x, Rows):
        raise TypeError(f"a {w.format} matrix takes f32 rows, not rows rounded to int8")
    with launch(work) as count:
        float_matmul(w.packing.kind)(
            w.data, panel_bytes, -(-w.cols // CHUNK), max(1, w.packing.block // CHUNK), w.places,
            padded_columns(x), out,
            count,
        )  # fmt: skip


def matmul(x: F32 | Rows, w: Matrix, out: F32 | None = None) -> F32:
    """x [N, K] times one packed matrix [M, K], transposed: f32 [N, M]. Integer formats round x first when it
    is f32.

    `out`, if given, is contiguous f32 [N, M] and returned. ValueError when the columns differ or several are
    stacked.
    """
    if len(w.parts) != 1:
        raise ValueError(f"this matrix is a stack of {len(w.parts)}; use matmul_parts")
    if out is None:
        out = aligned((len(x), w.rows), np.float32)
    elif out.shape != (len(x), w.rows) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be contiguous f32 [{len(x)}, {w.rows}], not {out.dtype} {list(out.shape)}"
        )
    if len(x):
        _run(x, w, out.reshape(-1))
    return out


def matmul_parts(x: F32 | Rows, w: Matrix) -> list[F32]:
    """x [N, K] times each of the stacked matrices: contiguous f32 [N, rows of the part] each, in one
    launch.
    """
    count = len(x)
    flat = aligned((count * w.rows,), np.float32)
    if count:
        _run(x, w, flat)
    outputs, start = [], 0
    for rows in w.parts:
        end = start + count * rows
        outputs.append(flat[start:end].reshape(count, rows))
        start = end
    return outputs
