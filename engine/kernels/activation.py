"""The non-linearities between an expert's gate and up projections and its down projection.

An `Activation` is a kind and up to three numbers; kernels take it as an integer and an f32 array [4].
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.arrays import F32
from engine.kernels.compile import device, kernel
from engine.kernels.scalar import gelu, gelu_tanh, sigmoid, silu, tanh

ActivationKind: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "clamped_silu", "gpt_oss", "situ"]

KINDS: tuple[ActivationKind, ...] = ("silu", "gelu", "gelu_tanh", "clamped_silu", "gpt_oss", "situ")


@dataclass(frozen=True, slots=True)
class Activation:
    """How gate g and up u become one value.

    - silu: silu(g) · u; gelu and gelu_tanh likewise.
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


@kernel
def activate(code, parameters, gate, up, count, out):  # type: ignore[no-untyped-def]
    """out[i] = activation(gate[i], up[i]) for i < count, all f32 [count]; `code` and `parameters` of an
    `Activation`.
    """
    limit, alpha, beta = parameters[0], parameters[1], parameters[2]
    if code == 0:
        for i in range(count):
            out[i] = silu(gate[i]) * up[i]
    elif code == 1:
        for i in range(count):
            out[i] = gelu(gate[i]) * up[i]
    elif code == 2:
        for i in range(count):
            out[i] = gelu_tanh(gate[i]) * up[i]
    elif code == 3:
        for i in range(count):
            out[i] = silu(min(gate[i], limit)) * _clip(up[i], limit)
    elif code == 4:
        for i in range(count):
            g = min(gate[i], limit)
            out[i] = (_clip(up[i], limit) + np.float32(1.0)) * (g * sigmoid(alpha * g))
    else:
        for i in range(count):
            u = limit * tanh(up[i] / limit) if limit > np.float32(0.0) else up[i]
            out[i] = beta * tanh(gate[i] / beta) * sigmoid(gate[i]) * u
