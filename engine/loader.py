"""Reads the dense weights of a model once, packs each for the kernels, and lets the source pages go.

A family's constructor asks the loader for what it needs, by name; the loader knows the weights format,
converts, packs and keeps count. What is asked for is noted, so that at the end every tensor of the
checkpoint was either used, or belongs to the routed experts, or is one that the family leaves out
knowingly: a bias or norm that a family does not know is refused instead of ignored.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from engine.arrays import F32
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointError
from engine.experts import ExpertLayout, ExpertRefs, MatrixRef
from engine.formats import F32Matrix, StoredMatrix
from engine.kernels import Activation, ExpertShape, Matrix, pack, pack_expert, stackable
from engine.layers import DenseMLP, Embedding, Linear, Stack
from engine.numerics import Weights
from engine.weights import Shelf

Ref = str | MatrixRef
NEVER_NEEDED = re.compile(r".*\.(rotary_emb\.inv_freq|rotary_pos_emb\.inv_freq|masked_bias|attn\.bias)")


class Loader:
    """Gives a family its weights. `progress(done, total)` is told bytes of dense weights as they are read."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Weights,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.weights = weights
        self.resident_bytes = 0
        self._within = ""
        self._used: set[str] = set()
        self._progress = progress
        self._done = 0
        self._total = 0

    @property
    def native(self) -> bool:
        """Whether everything is computed on the float path."""
        return self.weights == "native"

    @property
    def cache_dtype(self) -> np.dtype[np.generic]:
        """What keys and values are kept in."""
        return np.dtype(np.float32 if self.native else np.float16)

    def within(self, prefix: str) -> "Loader":
        """This loader, all names that it is asked for with `prefix` before them: a part of a larger model."""
        self._within = prefix
        return self

    def __contains__(self, name: object) -> bool:
        return f"{self._within}{name}" in self.checkpoint

    def prefetch(self, layout: ExpertLayout | None, skipped: Callable[[str], bool]) -> None:
        """Asks the source for all dense tensors at once."""
        self._total = self.checkpoint.prefetch(dense_tensors(self.checkpoint, layout, skipped))

    def vector(self, ref: Ref, count: int) -> F32:
        """A norm, bias or other small vector in f32 [count]."""
        return self._vector(self._ref(ref), count)

    def tensor(self, name: str, shape: tuple[int, ...]) -> F32:
        """A tensor of plain floats in f32, of exactly this shape."""
        name = f"{self._within}{name}"
        values = self.checkpoint.f32(name)
        if values.shape != shape:
            raise CheckpointError(
                f"{name} has shape {list(values.shape)}; config.json makes it {list(shape)}"
            )
        self._note(name)
        return self._resident(np.ascontiguousarray(values))

    def filled_up(self, name: str, count: int) -> F32:
        """A tensor of `count` numbers that releases store with further dimensions of 1, or filled up with zeros."""
        values = self.tensor(name, self.checkpoint.info(f"{self._within}{name}").shape).reshape(-1)
        if len(values) < count or values[count:].any():
            raise CheckpointError(f"{name} has {len(values)} elements; config.json makes it {count}")
        return np.ascontiguousarray(values[:count])

    def integers(
        self, name: str, shape: tuple[int, ...]
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        """A tensor of integers as int64, of exactly this shape."""
        name = f"{self._within}{name}"
        values = self.checkpoint.integers(name)
        if values.shape != shape:
            raise CheckpointError(
                f"{name} has shape {list(values.shape)}; config.json makes it {list(shape)}"
            )
        self._note(name)
        self.resident_bytes += values.nbytes
        return values

    def matrix(self, ref: Ref, rows: int, cols: int) -> F32:
        """A matrix [rows, cols] in f32, from any stored format: for families that fold or split it
        themselves."""
        ref = self._ref(ref)
        shelf = Shelf(self.checkpoint)
        values = shelf.matrix(ref, rows, cols).f32()
        self._note(*shelf.storage(ref).names)
        return values

    def linear(
        self, ref: Ref, rows: int, cols: int, *, bias: bool | None = False, exact: bool = False
    ) -> Linear:
        """One linear layer. `bias`: whether there is `name.bias`; None: if it is there.

        `exact`: on the float path whatever the weights format (routers, gates and the like).
        """
        ref = self._ref(ref)
        shelf = Shelf(self.checkpoint)
        stored = shelf.rows(ref, rows, cols)
        self._note(*shelf.storage(ref).names)
        return self._linear(stored, self._bias(ref, rows, bias), exact)

    def stack(
        self, refs: Sequence[Ref], rows: Sequence[int], cols: int, *, bias: bool | None = False
    ) -> Stack:
        """Linear layers that share their input (q, k and v; gate and up), computed in one launch; see
        `linear`."""
        shelf = Shelf(self.checkpoint)
        named = [self._ref(ref) for ref in refs]
        stored = [shelf.rows(ref, count, cols) for ref, count in zip(named, rows, strict=True)]
        for ref in named:
            self._note(*shelf.storage(ref).names)
        biases = [self._bias(ref, count, bias) for ref, count in zip(named, rows, strict=True)]
        groups = [stored] if stackable(stored, self.weights) else [[matrix] for matrix in stored]
        matrices = [pack(group, self.weights) for group in groups]
        self.resident_bytes += sum(matrix.nbytes for matrix in matrices)
        return Stack(matrices, biases)

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
        """A dense MLP or shared expert: `name.gate_proj`, `name.up_proj`, `name.down_proj`, or `parts`.

        `bias`: whether each has a `.bias` beside it.
        """
        refs = parts or ExpertRefs.within(name)
        shelf = Shelf(self.checkpoint)
        inner, beside, outer = (self._ref(ref) for ref in (refs.gate, refs.up, refs.down))
        gate = shelf.rows(inner, intermediate, hidden)
        up = shelf.rows(beside, intermediate, hidden)
        down = shelf.rows(outer, hidden, intermediate)
        for ref in (inner, beside, outer):
            self._note(*shelf.storage(ref).names)
        shape = ExpertShape.of(gate, up, down, activation, self.weights, bias)
        if bias:
            widths = ((inner, intermediate), (beside, intermediate), (outer, hidden))
            first, second, last = (self._bias(ref, count, True) for ref, count in widths)
            data = pack_expert(shape, gate, up, down, first, second, last)
        else:
            data = pack_expert(shape, gate, up, down)
        self.resident_bytes += data.nbytes
        return DenseMLP(shape, data)

    def folded(self, values: F32, *, exact: bool = False) -> Linear:
        """A linear layer whose matrix f32 [rows, cols] the family made itself, rounded like any other."""
        return self._linear(F32Matrix(np.ascontiguousarray(values)), None, exact)

    def by_head(self, heads: Sequence[F32]) -> Matrix:
        """A matrix [rows, cols] a head, made by the family and rounded like any other, as a stack for
        `matmul_heads`."""
        matrix = pack([F32Matrix(np.ascontiguousarray(head)) for head in heads], self.weights)
        self.resident_bytes += matrix.nbytes
        return matrix

    def embedding(self, name: str, rows: int, cols: int) -> Embedding:
        """Embedding rows, kept as stored."""
        ref, shelf = self._ref(name), Shelf(self.checkpoint)
        stored = shelf.matrix(ref, rows, cols)
        self._note(*shelf.storage(ref).names)
        table = Embedding(stored)
        self.resident_bytes += table.nbytes
        return table

    def head(
        self, name: str, embedding: str, rows: int, cols: int, *, tied: bool, bias: bool = False
    ) -> Linear:
        """The output head: the shipped one; else the embeddings if the config ties them; else
        CheckpointError."""
        shipped = any(f"{name}{suffix}" in self for suffix in (".weight", ".weight_packed", ""))
        if not shipped and not tied:
            raise CheckpointError(
                f"there is no {name}.weight, and config.json does not tie the output head to the embeddings; "
                "a shard may be missing"
            )
        return self.linear(name if shipped else embedding, rows, cols, bias=bias and shipped)

    def finish(self, layout: ExpertLayout | None, skipped: Callable[[str], bool]) -> None:
        """Checks that all experts are there, and that nothing in the checkpoint was left out unknowingly."""
        expert_names = expert_modules(layout, self.checkpoint)
        absent = expert_names - {module_of(name) for name in self.checkpoint.tensors}
        if absent:
            self.checkpoint.info(min(absent))
        for name in self.checkpoint.tensors:
            if name in self._used or skipped(name) or NEVER_NEEDED.fullmatch(name):
                continue
            if not self.checkpoint.info(name).nbytes:  # of shared experts, say, where there are none
                continue
            if module_of(name) not in expert_names:
                raise CheckpointError(
                    f"the checkpoint has a tensor {name!r} that this family's reader does not know; "
                    "ignoring it could give wrong answers"
                )

    def _linear(self, stored: StoredMatrix, bias: F32 | None, exact: bool) -> Linear:
        matrix = pack(stored, "native" if exact else self.weights)
        self.resident_bytes += matrix.nbytes
        return Linear(matrix, bias)

    def _bias(self, ref: MatrixRef, count: int, bias: bool | None) -> F32 | None:
        name = f"{ref.name}.bias"
        if bias is False or (bias is None and name not in self.checkpoint):
            return None
        return self._vector(MatrixRef(name, ref.index, ref.first, ref.step, ref.count), count)

    def _vector(self, ref: MatrixRef, count: int) -> F32:
        values = Shelf(self.checkpoint).vector(ref, count)
        self._note(f"{ref.name}.weight" if f"{ref.name}.weight" in self.checkpoint else ref.name)
        return self._resident(values)

    def _ref(self, ref: Ref) -> MatrixRef:
        found = MatrixRef(ref) if isinstance(ref, str) else ref
        return replace(found, name=f"{self._within}{found.name}") if self._within else found

    def _resident(self, values: F32) -> F32:
        self.resident_bytes += values.nbytes
        return values

    def _note(self, *names: str) -> None:
        for name in names:
            if name not in self._used:
                self._used.add(name)
                self._done += self.checkpoint.info(name).nbytes
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


SUFFIX = re.compile(
    r"(\.(weight|weight_packed|weight_scale|weight_scale_inv|weight_shape|scale|bias|input_scale)"
    r"|_blocks|_scales|_scale|_scale_inv)$"
)


def module_of(name: str) -> str:
    """The module a tensor belongs to: its name without what the stored format adds."""
    return SUFFIX.sub("", name)


def dense_tensors(
    checkpoint: Checkpoint, layout: ExpertLayout | None, skipped: Callable[[str], bool]
) -> list[str]:
    """The tensors that a model holds whatever becomes of its routed experts."""
    experts = expert_modules(layout, checkpoint)
    return [
        name
        for name in checkpoint.tensors
        if not (skipped(name) or NEVER_NEEDED.fullmatch(name) or module_of(name) in experts)
    ]


def expert_modules(layout: ExpertLayout | None, checkpoint: Checkpoint) -> set[str]:
    """The modules that hold routed experts."""
    if layout is None:
        return set()
    layout = layout.stored_in(checkpoint)
    return {module_of(ref.name) for layer, expert in layout.all() for ref in layout.refs(layer, expert)}
