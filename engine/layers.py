"""The pieces that families are put together from. Each reads f32 rows [N, …] and gives f32 rows, batch or
not.

Nothing here knows a family. What a family does in its own way stands in its own file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.arrays import F32, U8, Array, joined
from engine.cache import KeyValue
from engine.config import Reader
from engine.errors import ConfigError, EngineError
from engine.formats import BF16Matrix, F16Matrix, F32Matrix, MXFP4Blocks, Q4Blocks, Q8Blocks, StoredMatrix
from engine.kernels import (
    Activation,
    ExpertShape,
    Matrix,
    RowExperts,
    RowLinear,
    RowNorm,
    attention,
    matmul,
    matmul_parts,
    rms_norm,
    run_mlp,
    sequence_attention,
    takes_sequences,
)
from engine.kernels.activation import ActivationKind
from engine.models import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Root mean square norm over the last dimension; `plus_one` where a family multiplies by 1 + weight."""

    weight: F32
    epsilon: float
    plus_one: bool = False
    alone: RowNorm = field(init=False, repr=False)
    """The norm as kernels for a single row take it."""

    def __post_init__(self) -> None:
        plus = np.float32(1 if self.plus_one else 0)
        object.__setattr__(self, "alone", RowNorm(self.weight, np.float32(self.epsilon), plus))

    def __call__(self, x: F32) -> F32:
        """x [N, D], or [N, H, D] with each head by itself -> the same shape."""
        return rms_norm(x, self.weight, self.epsilon, plus_one=self.plus_one)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A packed matrix [outputs, inputs] and perhaps a bias."""

    matrix: Matrix
    bias: F32 | None = None
    alone: RowLinear | None = field(init=False, repr=False)
    """What runs it on a single row in one call, on the integer path."""

    def __post_init__(self) -> None:
        alone = RowLinear(self.matrix, self.bias) if self.matrix.integer else None
        object.__setattr__(self, "alone", alone)

    def __call__(self, x: F32, norm: Norm | None = None, added: F32 | None = None) -> F32:
        """x [N, inputs], normed first if there is a `norm` -> [N, outputs], plus `added` if there is that."""
        if self.alone is not None and len(x) == 1:
            return self.alone(x, None if norm is None else norm.alone, added)
        out = matmul(x if norm is None else norm(x), self.matrix)
        if self.bias is not None:
            out += self.bias
        return out if added is None else added + out


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Linear layers on one input: a single matrix of several parts, or several matrices where formats
    differ."""

    matrices: Sequence[Matrix]
    biases: Sequence[F32 | None]
    alone: RowLinear | None = field(init=False, repr=False)
    """What runs all of them on a single row in one call, where they are one matrix on the integer path."""

    def __post_init__(self) -> None:
        one = self.matrices[0] if len(self.matrices) == 1 and self.matrices[0].integer else None
        object.__setattr__(
            self, "alone", None if one is None else RowLinear(one, self._joined_bias(one.parts))
        )

    def _joined_bias(self, parts: Sequence[int]) -> F32 | None:
        """The biases of all parts, zeros where there is none."""
        if all(bias is None for bias in self.biases):
            return None
        pairs = zip(self.biases, parts, strict=True)
        return np.concatenate([np.zeros(rows, np.float32) if bias is None else bias for bias, rows in pairs])

    def __call__(self, x: F32, norm: Norm | None = None) -> list[F32]:
        """x [N, inputs], normed first if there is a `norm` -> [N, outputs] for each layer, contiguous."""
        if self.alone is not None and len(x) == 1:
            return self.alone.parts(x, None if norm is None else norm.alone)
        if norm is not None:
            x = norm(x)
        outputs = [out for matrix in self.matrices for out in matmul_parts(x, matrix)]
        for out, bias in zip(outputs, self.biases, strict=True):
            if bias is not None:
                out += bias
        return outputs


class Embedding:
    """Embedding rows as stored, decoded when they are looked up."""

    def __init__(self, stored: StoredMatrix) -> None:
        self._rows: Array
        self._decode: Callable[[Array], StoredMatrix]
        if isinstance(stored, Q8Blocks | Q4Blocks | MXFP4Blocks):
            self._decode, self._rows = type(stored), stored.blocks
        elif isinstance(stored, BF16Matrix | F16Matrix | F32Matrix):
            self._decode, self._rows = type(stored), stored.values
        else:  # formats with scales apart, which no release uses for embeddings, are decoded as a whole
            self._decode, self._rows = F32Matrix, stored.f32()

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._rows.nbytes

    def __call__(self, tokens: Array) -> F32:
        """tokens int [N] -> f32 [N, cols]. EngineError for a token that is not in the vocabulary."""
        wrong = tokens[(tokens < 0) | (tokens >= len(self._rows))]
        if len(wrong):
            raise EngineError(f"there is no token {wrong[0]}; the model's vocabulary has {len(self._rows):,}")
        return np.ascontiguousarray(self._decode(self._rows[tokens]).f32())


# hidden_act as configurations spell it.
NAMED_ALIKE: tuple[ActivationKind, ...] = (
    "relu", "relu2", "relu6", "leaky_relu", "hardswish", "quick_gelu", "gelu_10", "mish", "tanh", "sigmoid",
    "laplace", "sqrtsoftplus", "linear",
)  # fmt: skip
GATES: Mapping[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), Activation("silu")),
    **dict.fromkeys(("gelu", "gelu_python"), Activation("gelu")),
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"),
        Activation("gelu_tanh"),
    ),
    **{kind: Activation(kind) for kind in NAMED_ALIKE},
}


def activation_of(read: Reader, limit: float = 0.0) -> Activation:
    """The gating that `hidden_act` names, silu where nothing does, with a `limit` above 0 clamped; ConfigError for
    others."""
    name = read.text("hidden_act", default="silu")
    if name not in GATES:
        raise ConfigError(f"{read.where} asks for hidden_act = {name!r}; known are {', '.join(GATES)}")
    gating = GATES[name]
    if limit <= 0.0:
        return gating
    return Activation("clamped_silu" if gating.kind == "silu" else gating.kind, limit=limit)


@dataclass(frozen=True, slots=True, eq=False)
class DenseMLP:
    """down(activation(gate(x), up(x))): a dense feed-forward layer or a shared expert."""

    shape: ExpertShape
    data: U8
    alone: RowExperts | None = field(init=False, repr=False)
    """What runs it on a single row in one call, on the integer path."""

    def __post_init__(self) -> None:
        alone = RowExperts(self.shape, self.data) if self.shape.integer else None
        object.__setattr__(self, "alone", alone)

    def __call__(self, x: F32) -> F32:
        """x [N, D] -> [N, D]."""
        if self.alone is not None and len(x) == 1:
            return self.alone.mlp(x)
        return run_mlp(self.shape, self.data, x)


def attend(
    batch: Batch,
    parts: Sequence[KeyValue],
    q: F32,
    k: F32,
    v: F32,
    *,
    scale: float,
    window: int | None = None,
    sinks: F32 | None = None,
    bias: F32 | None = None,
) -> F32:
    """Writes the rows' keys and values to their sequences' caches and attends to all that is there.

    q f32 [N, H, D], k [N, Hkv, D], v [N, Hkv, Dv], positions already in them -> [N, H · Dv]. `parts`: the
    layer's cache in each of the batch's states. `window`, `sinks` and `bias` as in `kernels.attention`.
    """
    if takes_sequences(parts[0].dtype, len(parts), q.size * (batch.furthest + 1)):
        table = np.array(
            [
                (rows.start, rows.stop - rows.start, *part.place)
                for part, rows in zip(parts, batch.slices, strict=True)
            ],
            np.int64,
        )
        seen = sequence_attention(
            q, k, v, table, parts[0].dtype, batch.positions, batch.furthest,
            scale=scale, window=window, sinks=sinks, bias=bias,
        )  # fmt: skip
        return seen.reshape(len(batch), -1)
    outputs = []
    for part, rows in zip(parts, batch.slices, strict=True):
        positions = batch.positions[rows]
        part.write(int(positions[0]), k[rows], v[rows])
        outputs.append(
            attention(
                q[rows],
                part.arrays[0],
                part.arrays[1],
                positions,
                scale=scale,
                start=part.start,
                window=window,
                sinks=sinks,
                bias=None if bias is None else bias[rows],
            )
        )
    out = joined(outputs)
    return out.reshape(len(batch), -1)
