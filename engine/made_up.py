"""Dense weights of any family, made up in memory from its configuration alone: for measuring, without a checkpoint.

Numbers are normally distributed and of about the size that trained ones have, the same ones every time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.arrays import F32
from engine.checkpoint import Checkpoint
from engine.experts import ExpertRefs
from engine.formats import F32Matrix, StoredMatrix
from engine.kernels import Activation, ExpertShape, pack, pack_expert
from engine.layers import DenseMLP, Embedding, Linear, Stack
from engine.loader import Loader, Ref
from engine.numerics import Weights


class NoCheckpoint(Checkpoint):
    """Has no tensors; what a loader asks it for is made up before it is asked."""

    def __init__(self) -> None:
        self.tensors = {}


class MadeUp(Loader):
    """Gives a family whatever it asks for."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(NoCheckpoint(), weights)
        self._random = np.random.default_rng(0)

    def _drawn(self, shape: tuple[int, ...], size: float) -> F32:
        return np.asarray(self._random.standard_normal(shape, np.float32) * np.float32(size), np.float32)

    def _matrix(self, rows: int, cols: int) -> StoredMatrix:
        return F32Matrix(self._drawn((rows, cols), cols**-0.5))

    def _offset(self, count: int, bias: bool | None) -> F32 | None:
        return self._resident(self._drawn((count,), 0.1)) if bias else None

    def vector(self, ref: Ref, count: int) -> F32:
        return self._resident(1.0 + self._drawn((count,), 0.1))

    def tensor(self, name: str, shape: tuple[int, ...]) -> F32:
        return self._resident(self._drawn(shape, 0.1))

    def filled_up(self, name: str, count: int) -> F32:
        return self.tensor(name, (count,))

    def integers(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        ids: npt.NDArray[Any] = np.arange(shape[1], dtype=np.int64)
        return np.ascontiguousarray(np.broadcast_to(ids, shape))

    def matrix(self, ref: Ref, rows: int, cols: int) -> F32:
        return self._matrix(rows, cols).f32()

    def linear(
        self, ref: Ref, rows: int, cols: int, *, bias: bool | None = False, exact: bool = False
    ) -> Linear:
        return self._linear(self._matrix(rows, cols), self._offset(rows, bias), exact)

    def stack(
        self, refs: Sequence[Ref], rows: Sequence[int], cols: int, *, bias: bool | None = False
    ) -> Stack:
        matrix = pack([self._matrix(count, cols) for count in rows], self.weights)
        self.resident_bytes += matrix.nbytes
        return Stack([matrix], [self._offset(count, bias) for count in rows])

    def mlp(
        self,
        name: str,
        hidden: int,
        intermediate: int,
        activation: Activation,
        parts: ExpertRefs | None = None,
        *,
        bias: bool = False,
    ) -> DenseMLP:
        gate, up = self._matrix(intermediate, hidden), self._matrix(intermediate, hidden)
        down = self._matrix(hidden, intermediate)
        shape = ExpertShape.of(gate, up, down, activation, self.weights)
        data = pack_expert(shape, gate, up, down)
        self.resident_bytes += data.nbytes
        return DenseMLP(shape, data)

    def embedding(self, name: str, rows: int, cols: int) -> Embedding:
        return Embedding(F32Matrix(self._drawn((rows, cols), 1.0)))

    def head(
        self, name: str, embedding: str, rows: int, cols: int, *, tied: bool, bias: bool = False
    ) -> Linear:
        return self.linear(name, rows, cols)
