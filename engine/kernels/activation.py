"""The non-linearities between an expert's gate and up projections and its down projection.

An `Activation` is a kind and up to three numbers; kernels take it as an integer and an f32 array [4].
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from engine.arrays import F32
from engine.kernels.compile import device, kernel
from engine.kernels.scalar import erf, gelu, gelu_tanh, sigmoid, silu, softplus, tanh

ActivationKind: TypeAlias = Literal[
    "silu", "gelu", "gelu_tanh", "clamped_silu", "gpt_oss", "situ", "relu", "relu2", "relu6", "leaky_relu",
    "hardswish", "quick_gelu", "gelu_10", "mish", "tanh", "sigmoid", "laplace", "sqrtsoftplus", "linear",
]  # fmt: skip

KINDS: tuple[ActivationKind, ...] = get_args(ActivationKind)
(
    SILU, GELU, GELU_TANH, CLAMPED_SILU, GPT_OSS, SITU, RELU, RELU2, RELU6, LEAKY_RELU, HARDSWISH, QUICK_GELU,
    GELU_10, MISH, TANH, SIGMOID, LAPLACE, SQRTSOFTPLUS, LINEAR,
) = range(len(KINDS))  # fmt: skip
"""What kernels call them."""


@dataclass(frozen=True, slots=True)
class Activation:
    """How gate g and up u become one value.

    - silu: silu(g) · u; gelu, gelu_tanh and all not named below likewise. A `limit` above 0, which silu does not
      take, makes of g min(g, limit) and of u clip(u, ±limit).
    - clamped_silu: silu(min(g, limit)) · clip(u, ±limit), as in DeepSeek-V4 and GLM-5.
    - gpt_oss: g' = min(g, limit), u' = clip(u, ±limit): (u' + 1) · g' · sigmoid(alpha · g').
    - situ: beta · tanh(g / beta) · sigmoid(g) · limit · tanh(u / limit), as in Kimi K3; a `limit` of 0 leaves
      u as it is.
    """

    kind: ActivationKind = "silu"
    limit: float = 0.0
    alpha: float = 1.702
    beta: float = 1.0

    @property
    def code(self) -> int:
        """The kind's number in the kernels."""
        return KINDS.index(self.kind)

    def parameters(self) -> F32:
        """limit, alpha, beta, 0 as f32 [4]."""
        return np.array([self.limit, self.alpha, self.beta, 0], np.float32)


@device
def _clip(x, limit):  # type: ignore[no-untyped-def]
    return min(max(x, -limit), limit)


@device
def _bent(code, x):  # type: ignore[no-untyped-def]
    zero, six = np.float32(0.0), np.float32(6.0)
    if code == GELU:
        return gelu(x)
    if code == GELU_TANH:
        return gelu_tanh(x)
    if code == RELU:
        return max(x, zero)
    if code == RELU2:
        return max(x, zero) * max(x, zero)
    if code == RELU6:
        return min(max(x, zero), six)
    if code == LEAKY_RELU:
        return x if x > zero else np.float32(0.01) * x
    if code == HARDSWISH:
        return x * min(max(x + np.float32(3.0), zero), six) / six
    if code == QUICK_GELU:
        return x * sigmoid(np.float32(1.702) * x)
    if code == GELU_10:
        return _clip(gelu(x), np.float32(10.0))
    if code == MISH:
        return x * tanh(softplus(x))
    if code == TANH:
        return tanh(x)
    if code == SIGMOID:
        return sigmoid(x)
    if code == LAPLACE:  # a normal distribution of mean √½ and variance 1 / (4 π)
        return np.float32(0.5) * (np.float32(1.0) + erf((x - np.float32(0.707107)) / np.float32(0.39894257)))
    if code == SQRTSOFTPLUS:
        return np.sqrt(softplus(x))
    return x


@kernel
def activate(code, parameters, gate, up, count, out):  # type: ignore[no-untyped-def]
    """out[i] = activation(gate[i], up[i]) for i < count, all f32 [count]; `code` and `parameters` of an
    `Activation`.
    """
    limit, alpha, beta = parameters[0], parameters[1], parameters[2]
    if code == SILU:
        for i in range(count):
            out[i] = silu(gate[i]) * up[i]
    elif code == CLAMPED_SILU:
        for i in range(count):
            out[i] = silu(min(gate[i], limit)) * _clip(up[i], limit)
    elif code == GPT_OSS:
        for i in range(count):
            g = min(gate[i], limit)
            out[i] = (_clip(up[i], limit) + np.float32(1.0)) * (g * sigmoid(alpha * g))
    elif code == SITU:
        for i in range(count):
            u = limit * tanh(up[i] / limit) if limit > np.float32(0.0) else up[i]
            out[i] = beta * tanh(gate[i] / beta) * sigmoid(gate[i]) * u
    else:
        for i in range(count):
            g, u = gate[i], up[i]
            if limit > np.float32(0.0):
                g, u = min(g, limit), _clip(u, limit)
            out[i] = _bent(code, g) * u
