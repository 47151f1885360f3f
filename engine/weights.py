"""Finds a matrix of a checkpoint in whatever format it is stored, and says which bytes that takes.

A family names modules ("model.layers.0.self_attn.q_proj"); releases store them in many ways. Recognised
are, by the tensors that are there:

| tensors | format | |---|---| | `name.weight` or `name`, F32, F16, BF16 | plain | | `name.weight` F8_E4M3
with `name.weight_scale_inv`, `name.weight_scale` or `name.scale` | fp8 in blocks, rows or whole | |
`name.weight_packed` I32 with `name.weight_scale` | int4 (compressed-tensors pack-quantized, symmetric) | |
`name.weight_packed` U8 with `name.weight_scale` U8 | MXFP4 (compressed-tensors) | | `name_blocks`,
`name_scales` U8 | MXFP4 (gpt-oss) | | `name.weight` I8 with `name.scale` F8_E8M0 | MXFP4 (DeepSeek-V4) | |
`name.weight` Q8_0, Q4_0, MXFP4 | blocks of GGUF |

What quantises in a way that is not known (zero points, a reordering of columns, NVFP4 …) is refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import F32, Array
from engine.checkpoint import Checkpoint, TensorInfo
from engine.errors import CheckpointError
from engine.experts import MatrixRef
from engine.formats import (
    BF16Matrix,
    F16Matrix,
    F32Matrix,
    FP8Matrix,
    Int4Matrix,
    MXFP4Blocks,
    MXFP4Matrix,
    Q4Blocks,
    Q8Blocks,
    StoredMatrix,
)
from engine.formats.stored import rows_of

REFUSED_SUFFIXES = (
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_global_scale",
    ".qweight",
    ".qzeros",
    ".g_idx",
    ".weight_scale_2",
)
PLAIN: Mapping[str, type[StoredMatrix]] = {"F32": F32Matrix, "F16": F16Matrix, "BF16": BF16Matrix}
FORMATS: Mapping[str, str] = {
    "f32": "plain",
    "f16": "plain",
    "bf16": "plain",
    "fp8": "E4M3 with scales a block, a row or a tensor",
    "int4": "compressed-tensors, pack-quantized, symmetric",
    "mxfp4": "as compressed-tensors, gpt-oss and DeepSeek-V4 store it",
}
"""What safetensors files may hold matrices as."""
BLOCKS: Mapping[str, type[StoredMatrix]] = {"Q8_0": Q8Blocks, "Q4_0": Q4Blocks, "MXFP4": MXFP4Blocks}


@dataclass(frozen=True, slots=True)
class Storage:
    """How a module's matrix is stored: the kind, the tensor with the values and the one with the scales."""

    kind: str  # "f32", "f16", "bf16", "fp8", "int4", "mxfp4", "q8" or "q4"
    values: str
    scales: str | None = None
    further: tuple[str, ...] = ()  # present, and of no use

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors that belong to the matrix."""
        return (self.values, *((self.scales,) if self.scales else ()), *self.further)


def storage(checkpoint: Checkpoint, name: str) -> Storage:
    """How module (or bare tensor) `name` is stored. CheckpointError when it is not there or not
    understood."""
    tensors = checkpoint.tensors
    for suffix in REFUSED_SUFFIXES:
        if name + suffix in tensors:
            raise CheckpointError(f"{name} is quantised with {suffix[1:]!r}, which this engine does not read")
    packed = tensors.get(f"{name}.weight_packed")
    if packed is not None:
        scale = checkpoint.info(f"{name}.weight_scale").name
        shape = tuple(other for other in (f"{name}.weight_shape",) if other in tensors)
        kinds = {"I32": "int4", "U8": "mxfp4", "I8": "mxfp4"}
        if packed.dtype not in kinds:
            raise CheckpointError(
                f"{packed.name} is packed as {packed.dtype}; int4 in I32 and MXFP4 in U8 are known"
            )
        return Storage(kinds[packed.dtype], packed.name, scale, shape)
    if f"{name}_blocks" in tensors:
        return Storage("mxfp4", f"{name}_blocks", checkpoint.info(f"{name}_scales").name)
    bare = f"{name}.weight" not in tensors and name in tensors
    values = checkpoint.info(name if bare else f"{name}.weight")
    scales = [name + suffix for suffix in ("_scale_inv", "_scale")] if bare else []
    scales += [f"{name}.{suffix}" for suffix in ("weight_scale_inv", "weight_scale", "scale")]
    found = [scale for scale in scales if scale in tensors]
    ignored = tuple(other for other in (f"{name}.input_scale",) if other in tensors)
    if values.dtype in PLAIN and not found:
        return Storage(values.dtype.lower(), values.name)
    if values.dtype == "F8_E4M3" and found:
        return Storage("fp8", values.name, found[0], ignored)
    if values.dtype in ("I8", "U8") and found and tensors[found[0]].dtype in ("F8_E8M0", "U8"):
        return Storage("mxfp4", values.name, found[0])
    if values.dtype in BLOCKS:
        return Storage({"Q8_0": "q8", "Q4_0": "q4", "MXFP4": "mxfp4"}[values.dtype], values.name)
    also = f" with {found[0]}" if found else ""
    raise CheckpointError(f"{values.name} is stored as {values.dtype}{also}, which this engine does not read")


class _RowsOnDemand(StoredMatrix):
    """Plain floats of which only the rows taken are read: packing a large matrix then needs no second
    copy."""

    decoded: type[F32Matrix | F16Matrix | BF16Matrix]

    def __init__(self, checkpoint: Checkpoint, info: TensorInfo) -> None:
        self._checkpoint, self._name = checkpoint, info.name
        self.rows, self.cols = info.shape

    @property
    def values(self) -> Array:
        """All rows."""
        return self._checkpoint.raw(self._name)

    def f32(self) -> F32:
        return self.decoded(self.values).f32()

    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Any:
        rows = rows_of(self.rows, first, step, count)
        span = max(0, min(rows.stop, self.rows) - rows.start)
        return self.decoded(self._checkpoint.raw(self._name, rows.start, span)[::step])


class _F32OnDemand(_RowsOnDemand, F32Matrix):  # type: ignore[override]
    decoded = F32Matrix


class _F16OnDemand(_RowsOnDemand, F16Matrix):  # type: ignore[override]
    decoded = F16Matrix


class _BF16OnDemand(_RowsOnDemand, BF16Matrix):  # type: ignore[override]
    decoded = BF16Matrix


ON_DEMAND: Mapping[str, type[_RowsOnDemand]] = {
    "f32": _F32OnDemand,
    "f16": _F16OnDemand,
    "bf16": _BF16OnDemand,
}


class Shelf:
    """Reads matrices; what several of them share (gate and up in one tensor) is read once while the shelf
    is kept."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._arrays: dict[tuple[str, int | None], Array] = {}
        self._storages: dict[str, Storage] = {}

    def storage(self, ref: MatrixRef) -> Storage:
        """How the referred matrix is stored."""
        if ref.name not in self._storages:
            self._storages[ref.name] = storage(self._checkpoint, ref.name)
        return self._storages[ref.name]

    def matrix(self, ref: MatrixRef, rows: int, cols: int) -> StoredMatrix:
        """The referred matrix. CheckpointError unless it is [rows, cols] (outputs, inputs)."""
        found = self.storage(ref)
        try:
            matrix = self._stored(found, self._array(found.values, ref.index), ref, cols)
            matrix = _transposed(matrix, found) if ref.transposed else matrix
            if ref.first or ref.step != 1 or ref.count is not None:
                matrix = matrix.take(ref.first, ref.step, ref.count)
        except ValueError as error:  # FormatError, and shapes that cannot be unpacked
            raise CheckpointError(f"{found.values}: {error}") from None
        if (matrix.rows, matrix.cols) != (rows, cols):
            raise CheckpointError(
                f"{found.values} is a matrix of {matrix.rows} x {matrix.cols}; "
                f"config.json makes it {rows} x {cols}"
            )
        return matrix

    def rows(self, ref: MatrixRef, rows: int, cols: int) -> StoredMatrix:
        """As `matrix`, but plain matrices are not read before their rows are taken."""
        found = self.storage(ref)
        info = self._checkpoint.info(found.values)
        if found.kind not in ON_DEMAND or ref != MatrixRef(ref.name) or info.shape != (rows, cols):
            return self.matrix(ref, rows, cols)
        return ON_DEMAND[found.kind](self._checkpoint, info)

    def vector(self, ref: MatrixRef, count: int) -> F32:
        """The referred bias or other vector, f32 [count]."""
        whole = ref.index is None
        name = f"{ref.name}.weight" if f"{ref.name}.weight" in self._checkpoint else ref.name
        values = self._checkpoint.f32(name) if whole else self._checkpoint.f32(name, ref.index or 0, 1)[0]
        if values.ndim != 1:
            raise CheckpointError(f"{name} has shape {list(values.shape)}; a vector was expected")
        end = None if ref.count is None else ref.first + ref.count * ref.step
        values = np.ascontiguousarray(values[ref.first : end : ref.step])
        if len(values) != count:
            raise CheckpointError(f"{name} has {len(values)} elements; config.json makes it {count}")
        return values

    def _array(self, name: str, index: int | None) -> Array:
        key = (name, index)
        if key not in self._arrays:
            self._arrays[key] = (
                self._checkpoint.raw(name) if index is None else self._checkpoint.raw(name, index, 1)[0]
            )
        return self._arrays[key]

    def _scales(self, found: Storage, ref: MatrixRef) -> Array:
        return self._array(self._checkpoint.info(found.scales or "").name, ref.index)

    def _stored(self, found: Storage, values: Array, ref: MatrixRef, cols: int) -> StoredMatrix:
        match found.kind:
            case "f32":
                return F32Matrix(values)
            case "f16":
                return F16Matrix(values)
            case "bf16":
                return BF16Matrix(values)
            case "fp8":
                return _fp8(values, self._scales(found, ref))
            case "int4":
                scales = self._scales(found, ref)
                return Int4Matrix(values, scales, cols, _group_size(cols, scales.shape[-1]))
            case "mxfp4" if found.scales is not None:
                return MXFP4Matrix(values, self._scales(found, ref))
            case "mxfp4":
                return MXFP4Blocks(values)
            case "q8":
                return Q8Blocks(values)
            case _:
                return Q4Blocks(values)


def _group_size(cols: int, groups: int) -> int:
    """Columns a scale, for sizes that are a power of two times 32."""
    size = 32
    while groups and size * groups < cols:
        size *= 2
    return size


def _fp8(codes: Array, scales: Array) -> FP8Matrix:
    """By the scales' shape: one (a whole matrix), one a row, or one a block of 128 x 128."""
    rows, cols = codes.shape
    if scales.size == 1:
        return FP8Matrix(codes, scales.reshape(1, 1), (max(rows, 1), max(cols, 1)))
    if scales.shape in ((rows,), (rows, 1)) and -(-rows // 128) != rows:
        return FP8Matrix(codes, scales.reshape(rows, 1), (1, max(cols, 1)))
    return FP8Matrix(codes, scales)


def _transposed(matrix: StoredMatrix, found: Storage) -> StoredMatrix:
    turn: Callable[[], StoredMatrix] | None = getattr(matrix, "transposed", None)
    if turn is None:
        raise CheckpointError(
            f"{found.values} is stored as {found.kind}, inputs first; that is not known to exist"
        )
    return turn()


def byte_ranges(checkpoint: Checkpoint, refs: list[MatrixRef]) -> list[tuple[str, int, int]]:
    """(path, offset, length) of everything that reading the referred matrices and vectors takes; may
    overlap."""
    ranges = []
    for ref in refs:
        vector = checkpoint.tensors.get(ref.name)
        names: tuple[str, ...]
        if vector is not None and len(vector.shape) - (ref.index is not None) == 1:
            names = (ref.name,)
        else:
            found = storage(checkpoint, ref.name)
            names = tuple(name for name in (found.values, found.scales) if name)
        for name in names:
            part = checkpoint.range(name) if ref.index is None else checkpoint.range(name, ref.index, 1)
            ranges.append(part)
    return ranges


class Outline(Shelf):
    """A shelf of matrices that have the right type, shape and dtype but no content: read from the headers
    alone."""

    def _array(self, name: str, index: int | None) -> Array:
        info = self._checkpoint.info(name)
        shape = info.shape if index is None else info.shape[1:]
        return np.broadcast_to(np.zeros((), self._checkpoint.dtype(name)), shape)

    def whole(self, ref: MatrixRef) -> StoredMatrix:
        """A module's matrix, whatever its size. CheckpointError or ValueError when it holds none, or several."""
        found = self.storage(ref)
        values = self._array(found.values, None)
        if values.ndim != 2:
            raise ValueError(f"{found.values} has {values.ndim} dimensions")
        return self._stored(found, values, ref, 8 * values.shape[1])
