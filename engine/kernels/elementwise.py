"""The functions of `scalar` on whole f32 arrays, and choosing the k best."""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.arrays import F32, I32, aligned
from engine.kernels import scalar
from engine.kernels.activation import Activation, activate
from engine.kernels.compile import kernel
from engine.kernels.threads import over_rows


@kernel
def _exp(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.exp(x[i])


@kernel
def _log(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.log(x[i])


@kernel
def _log1p(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.log1p(x[i])


@kernel
def _softplus(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.softplus(x[i])


@kernel
def _log_sigmoid(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.log_sigmoid(x[i])


@kernel
def _sigmoid(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.sigmoid(x[i])


@kernel
def _tanh(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.tanh(x[i])


@kernel
def _silu(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.silu(x[i])


@kernel
def _gelu_tanh(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.gelu_tanh(x[i])


@kernel
def _gelu(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.gelu(x[i])


@kernel
def _erf(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = scalar.erf(x[i])


def _on_arrays(run: Any, device: Any) -> Callable[[F32], F32]:
    def on_array(x: F32) -> F32:
        flat = np.ascontiguousarray(x, np.float32).reshape(-1)
        out = aligned(flat.shape, np.float32)
        over_rows(len(flat), len(flat), lambda some: run(flat[some], out[some]))
        return out.reshape(x.shape)

    on_array.__doc__ = f"{device.py_func.__doc__} On an array of any shape; a new array."
    return on_array


exp = _on_arrays(_exp, scalar.exp)
log = _on_arrays(_log, scalar.log)
log1p = _on_arrays(_log1p, scalar.log1p)
softplus = _on_arrays(_softplus, scalar.softplus)
log_sigmoid = _on_arrays(_log_sigmoid, scalar.log_sigmoid)
sigmoid = _on_arrays(_sigmoid, scalar.sigmoid)
tanh = _on_arrays(_tanh, scalar.tanh)
silu = _on_arrays(_silu, scalar.silu)
gelu_tanh = _on_arrays(_gelu_tanh, scalar.gelu_tanh)
gelu = _on_arrays(_gelu, scalar.gelu)
erf = _on_arrays(_erf, scalar.erf)


@kernel
def _activation(code, parameters, gate, up, out):  # type: ignore[no-untyped-def]
    activate(code, parameters, gate, up, len(gate), out)


def activation(kind: Activation, gate: F32, up: F32) -> F32:
    """The activation on arrays of one shape, as inside `run_experts`."""
    flat = np.ascontiguousarray(gate, np.float32).reshape(-1)
    out = aligned(flat.shape, np.float32)
    _activation(kind.code, kind.parameters(), flat, np.ascontiguousarray(up, np.float32).reshape(-1), out)
    return out.reshape(gate.shape)


@kernel
def choose_best(scores, ids, values):  # type: ignore[no-untyped-def]
    k = ids.shape[1]
    for n in range(scores.shape[0]):
        taken = 0
        for e in range(scores.shape[1]):
            score = scores[n, e]
            if taken == k and not score > values[n, k - 1]:
                continue
            at = taken if taken < k else k - 1
            while at > 0 and score > values[n, at - 1]:
                values[n, at], ids[n, at] = values[n, at - 1], ids[n, at - 1]
                at -= 1
            values[n, at], ids[n, at] = score, e
            taken = min(taken + 1, k)


def topk(scores: F32, k: int) -> tuple[I32, F32]:
    """The k best of each line of f32 [N, E], best first, the lower index first where equal: ids int32, scores
    f32 [N, k].
    """
    if not 0 <= k <= scores.shape[1]:
        raise ValueError(f"{k} of {scores.shape[1]} scores cannot be chosen")
    ids, values = np.empty((len(scores), k), np.int32), np.empty((len(scores), k), np.float32)
    if k:
        choose_best(np.ascontiguousarray(scores, np.float32), ids, values)
    return ids, values
