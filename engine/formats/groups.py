"""Integers in groups of 32 along the inputs, one scale a group: the form in which the integer path takes
weights.

`Groups` holds weights that are stored so, or that were rounded so by one of the two rules:

- q8: scale = f16(absmax / 127), value = round-half-even(x / scale), clipped to ±127.
- q4: scale = f16(m / -8), m being the first element of the largest magnitude, with its sign (the rule of
  GGUF's Q4_0), value = round-half-even(x / scale), clipped to -8 … 7.

Both divide by the scale as stored, in f32; a scale of zero gives zeros. A short last group is filled with
zeros.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from engine.arrays import F32, Array
from engine.formats.codes import E8M0, bf16_to_f32

GROUP = 32  # inputs that share a scale

GroupKind: TypeAlias = Literal["q8", "q4", "int4", "mxfp4"]
ScaleKind: TypeAlias = Literal["f16", "bf16", "f32", "e8m0"]

LARGEST_F16 = np.float32(65504.0)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Weights [rows, cols] as `codes` int8 [rows, groups · 32] times `scales` [rows, groups].

    `scales` is as stored: float16, uint16 bits of bfloat16, float32, or uint8 E8M0 by `scale_kind`. For kind
    "mxfp4" the codes are twice the E2M1 values, and `f32_scales` is half of what is stored.
    """

    kind: GroupKind
    scale_kind: ScaleKind
    cols: int
    codes: Array
    scales: Array

    @property
    def rows(self) -> int:
        return len(self.codes)

    def f32_scales(self) -> F32:
        """What a code is multiplied by, f32 [rows, groups]."""
        if self.scale_kind == "e8m0":
            return E8M0[self.scales] * np.float32(0.5)
        return bf16_to_f32(self.scales) if self.scale_kind == "bf16" else self.scales.astype(np.float32)

    def f32(self) -> F32:
        """The weights, f32 [rows, cols]."""
        grouped = self.codes.reshape(self.rows, -1, GROUP).astype(np.float32) * self.f32_scales()[:, :, None]
        return np.ascontiguousarray(grouped.reshape(self.rows, -1)[:, : self.cols])


def _grouped(weights: F32) -> F32:
    rows, cols = weights.shape
    padded = np.zeros((rows, -(-cols // GROUP) * GROUP), np.float32)
    padded[:, :cols] = weights
    return padded.reshape(rows, -1, GROUP)


def _rounded(grouped: F32, scales: Array, low: int, high: int) -> Array:
    steps = scales.astype(np.float32)[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = np.where(steps == 0, np.float32(0), grouped / steps)
    return np.clip(np.rint(quotient), low, high).astype(np.int8).reshape(grouped.shape[0], -1)


def round_q8(weights: F32) -> Groups:
    """f32 [rows, cols] rounded by the q8 rule. The plain reference of what the packing kernels do."""
    grouped = _grouped(weights)
    scales = np.minimum(np.abs(grouped).max(2) / np.float32(127), LARGEST_F16).astype(np.float16)
    return Groups("q8", "f16", weights.shape[1], _rounded(grouped, scales, -127, 127), scales)


def round_q4(weights: F32) -> Groups:
    """f32 [rows, cols] rounded by the q4 rule. The plain reference of what the packing kernels do."""
    grouped = _grouped(weights)
    first = np.abs(grouped).argmax(2)
    extreme = np.take_along_axis(grouped, first[:, :, None], 2)[:, :, 0]
    scales = np.clip(extreme / np.float32(-8), -LARGEST_F16, LARGEST_F16).astype(np.float16)
    return Groups("q4", "f16", weights.shape[1], _rounded(grouped, scales, -8, 7), scales)
