"""Experts and dense MLPs: packed as one piece of memory each, run for many rows at once, and summed in the
router's order.

down(activation(gate(x), up(x))), with biases where the family has them. On the integer path an expert's
output row is rounded to int16 in groups of 32 (rule of the activations, 32767 for 127), so that local and
remote experts give the same.
"""

from dataclasses import dataclass, field

import numpy as np

from engine.arrays import F32, I32, U8, Array, aligned
from engine.formats import GROUP, StoredMatrix
from engine.kernels.activation import Activation
from engine.kernels.compile import kernel
from engine.kernels.experts_float import float_experts
from engine.kernels.experts_integer import integer_experts
from engine.kernels.matrix import padded_columns
from engine.kernels.packing import CHUNK, Packing, Weights, choose, pack_into
from engine.kernels.quantize import combine_group
from engine.kernels.rows import Rows, quantize_rows
from engine.kernels.scalar import fused
from engine.kernels.threads import launch, over_rows
from engine.memory import lasting_bytes

SILU = Activation()


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """What all packed experts of a layer (or a dense MLP) have in common."""

    hidden: int
    intermediate: int
    packing: Packing
    activation: Activation = SILU
    biases: bool = False
    nbytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a packed expert, a multiple of 64."""
    layout: Array = field(init=False, repr=False, compare=False)
    """What the kernels take, see `integer_experts`."""
    parameters: F32 = field(init=False, repr=False, compare=False)
    """Those of the activation."""

    def __post_init__(self) -> None:
        offsets = self.offsets()
        nbytes = offsets[4] + (_round_up(4 * self.hidden) if self.biases else 0)
        inner, outer = 2 * self.packing.panel_bytes(self.hidden), self.packing.panel_bytes(self.intermediate)
        numbers = (nbytes, *offsets, inner, outer, self.hidden, self.intermediate, self.biases)
        object.__setattr__(self, "nbytes", nbytes)
        object.__setattr__(self, "layout", np.array(numbers, np.int64))
        object.__setattr__(self, "parameters", self.activation.parameters())

    @classmethod
    def of(
        cls, gate: StoredMatrix, up: StoredMatrix, down: StoredMatrix, activation: Activation,
        weights: Weights,
        biases: bool = False,
    ) -> "ExpertShape":  # fmt: skip
        """The shape for matrices as stored. Where their formats differ, all are rounded to q8 (native:
        widened to f32).
        """
        packings = {choose(matrix, weights) for matrix in (gate, up, down)}
        mixed = Packing("f32") if weights == "native" else Packing("q8", "f16")
        return cls(gate.cols, gate.rows, packings.pop() if len(packings) == 1 else mixed, activation, biases)

    @property
    def integer(self) -> bool:
        """Whether rows are taken as int8 and given as int16."""
        return self.packing.integer

    def offsets(self) -> tuple[int, int, int, int, int]:
        """Bytes from the expert's start to gate, up, down, gate and up bias, down bias.

        Panels of gate and up take turns, so that what is computed together is read as one stretch.
        """
        panel = self.packing.panel_bytes(self.hidden)
        inner = 2 * self.packing.nbytes(self.intermediate, self.hidden)
        outer = self.packing.nbytes(self.hidden, self.intermediate)
        bias = _round_up(8 * self.intermediate) if self.biases else 0
        return 0, panel, inner, inner + outer, inner + outer + bias


def _round_up(count: int) -> int:
    return -(-count // 64) * 64


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """Outputs of experts for P (expert, row) pairs.

    Integer path: `values` int16 [P, D], `scale` f32 [P, ceil(D / 32)]. Float path: `values` f32 [P, D],
    `scale` f32 [P, 0].
    """

    values: Array
    scale: F32

    def __len__(self) -> int:
        return len(self.values)

    @property
    def integer(self) -> bool:
        return self.values.dtype == np.int16

    def f32(self) -> F32:
        """The values the rows stand for, [P, D]."""
        if not self.integer:
            return self.values
        wide = np.repeat(self.scale, GROUP, axis=1)[:, : self.values.shape[1]]
        return np.asarray(self.values.astype(np.float32) * wide, np.float32)


def pack_expert(
    shape: ExpertShape, gate: StoredMatrix, up: StoredMatrix, down: StoredMatrix,
    gate_bias: F32 | None = None,
    up_bias: F32 | None = None, down_bias: F32 | None = None, out: U8 | None = None,
) -> U8:  # fmt: skip
    """One expert as a piece of memory, uint8 [shape.nbytes]: `out` if given (64-byte aligned), else new.

    ValueError when sizes or biases do not fit the shape. The bytes depend on the weights and the shape alone.
    """
    wanted = (
        (shape.intermediate, shape.hidden),
        (shape.intermediate, shape.hidden),
        (shape.hidden, shape.intermediate),
    )
    for name, matrix, size in zip(("gate", "up", "down"), (gate, up, down), wanted, strict=True):
        if (matrix.rows, matrix.cols) != size:
            raise ValueError(
                f"the {name} matrix is [{matrix.rows}, {matrix.cols}] where {list(size)} is expected"
            )
    data = lasting_bytes(shape.nbytes) if out is None else out
    at = shape.offsets()
    pack_into(gate, shape.packing, data, at[0], 2 * at[1])
    pack_into(up, shape.packing, data, at[1], 2 * at[1])
    pack_into(down, shape.packing, data, at[2])
    data[at[3] :] = 0
    if shape.biases:
        if gate_bias is None or up_bias is None or down_bias is None:
            raise ValueError("these experts have biases, and not all of them were given")
        floats = data.view(np.float32)
        inner = at[3] // 4
        floats[inner : inner + shape.intermediate] = gate_bias
        floats[inner + shape.intermediate : inner + 2 * shape.intermediate] = up_bias
        floats[at[4] // 4 : at[4] // 4 + shape.hidden] = down_bias
    return data


def _within(numbers: I32, limit: int) -> bool:
    """Whether all are at least 0 and below `limit`."""
    if len(numbers) > 64:
        return bool(numbers.min() >= 0 and numbers.max() < limit)
    few = numbers.tolist()  # faster than two reductions
    return not few or (min(few) >= 0 and max(few) < limit)


def _check(shape: ExpertShape, arena: U8, x: F32 | Rows, slot: I32, row: I32) -> None:
    cols = x.cols if isinstance(x, Rows) else x.shape[1]
    if cols != shape.hidden:
        raise ValueError(f"rows of {cols} columns cannot go to experts of {shape.hidden}")
    if arena.ndim != 2 or arena.shape[1] != shape.nbytes or not arena.flags.c_contiguous:
        raise ValueError(f"the arena must be contiguous [slots, {shape.nbytes}], not {list(arena.shape)}")
    if len(slot) != len(row):
        raise ValueError(f"{len(slot)} slots were given with {len(row)} rows")
    if not (_within(slot, len(arena)) and _within(row, len(x))):
        raise ValueError(f"slots must be below {len(arena)} and rows below {len(x)}, and neither negative")


def _launch(
    shape: ExpertShape, arena: U8, x: F32 | Rows, slot: I32, row: I32, values: Array, scale: F32, plain: F32
) -> None:
    flat = arena.reshape(-1)
    work = 3 * len(slot) * shape.hidden * shape.intermediate
    code, parameters = shape.activation.code, shape.parameters
    if shape.integer:
        rows = x if isinstance(x, Rows) else quantize_rows(x)
        run = integer_experts(shape.packing.kind, shape.packing.scale)
        with launch(work) as count:
            run(
                flat, flat.view(np.float32), shape.layout, code, parameters, rows.q, rows.scale,
                rows.sums, slot, row,
                values, scale, plain, count,
            )  # fmt: skip
        return
    if isinstance(x, Rows):
        raise TypeError(f"{shape.packing.kind} experts take f32 rows, not rows rounded to int8")
    block = max(1, shape.packing.block // CHUNK)
    with launch(work) as count:
        float_experts(shape.packing.kind)(
            flat, flat.view(np.float32), shape.layout, block, code, parameters, padded_columns(x), slot,
            row, plain,
            count,
        )  # fmt: skip


def run_experts(shape: ExpertShape, arena: U8, x: F32 | Rows, slot: I32, row: I32) -> ExpertRows:
    """Runs, for each pair p, the expert in arena[slot[p]] on row x[row[p]]; one launch (two on the
    float path) whatever the pairs are.

    arena uint8 [slots, shape.nbytes], 64-byte aligned; x f32 [N, hidden] or Rows; slot and row int32 [P].
    Outputs come in the order of the pairs, and a pair's bits do not depend on the others. ValueError for
    sizes or numbers out of range.
    """
    _check(shape, arena, x, slot, row)
    pairs, plain = len(slot), np.empty((0, 0), np.float32)
    if shape.integer:
        values: Array = aligned((pairs, shape.hidden), np.int16)
        scale = aligned((pairs, -(-shape.hidden // GROUP)), np.float32)
    else:
        plain = aligned((pairs, shape.hidden), np.float32)
        values, scale = plain, np.empty((pairs, 0), np.float32)
    if pairs:
        _launch(shape, arena, x, slot, row, values, scale, plain)
    return ExpertRows(values, scale)


def run_mlp(shape: ExpertShape, data: U8, x: F32 | Rows) -> F32:
    """A dense MLP, packed by `pack_expert`, on all rows: f32 [N, hidden], not rounded on the way out."""
    count = len(x)
    arena, slot, row = data.reshape(1, -1), np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
    _check(shape, arena, x, slot, row)
    out = aligned((count, shape.hidden), np.float32)
    if count:
        _launch(shape, arena, x, slot, row, np.empty((0, 0), np.int16), np.empty((0, 0), np.float32), out)
    return out


@kernel
def combine_rounded(values, scale, weights, out):  # type: ignore[no-untyped-def]
    k, cols, groups = weights.shape[1], out.shape[1], scale.shape[1]
    for n in range(out.shape[0]):
        for g in range(cols // 32):
            combine_group(
                values, n * k * cols + g * 32, cols, scale, n * k * groups + g, groups, weights, n * k, k, out,
                n * cols + g * 32,
            )  # fmt: skip
        for i in range(cols // 32 * 32, cols):
            total = np.float32(0)
            for j in range(k):
                value = np.float32(values[n * k + j, i]) * scale[n * k + j, groups - 1]
                total = fused(weights[n, j], value, total)
            out[n, i] = total


@kernel
def _combine_plain(values, weights, out):  # type: ignore[no-untyped-def]
    k = weights.shape[1]
    for n in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[n, i] = np.float32(0)
        for j in range(k):
            weight = weights[n, j]
            for i in range(out.shape[1]):
                out[n, i] = fused(weight, values[n * k + j, i], out[n, i])


def combine(outputs: ExpertRows, weights: F32) -> F32:
    """Sum over j of weights[n, j] · outputs[n · k + j], by fma in increasing j: f32 [N, D]. weights f32 [N,
    k].
    """
    count, k = weights.shape
    if len(outputs) != count * k:
        raise ValueError(f"{count} rows of {k} experts need {count * k} outputs, not {len(outputs)}")
    out = aligned((count, outputs.values.shape[1]), np.float32)
    weights, values = np.ascontiguousarray(weights, np.float32), np.ascontiguousarray(outputs.values)
    scale = np.ascontiguousarray(outputs.scale, np.float32)

    def run(rows: slice) -> None:
        pairs = slice(rows.start * k, rows.stop * k)
        if outputs.integer:
            combine_rounded(values[pairs], scale[pairs], weights[rows], out[rows])
        else:
            _combine_plain(values[pairs], weights[rows], out[rows])

    over_rows(count, k * out.size, run)
    return out
