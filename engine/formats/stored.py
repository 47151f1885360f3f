"""A matrix as a checkpoint stores it: what all formats have in common, and the plain floats."""

from abc import ABC, abstractmethod
from typing import Self

import numpy as np

from engine.arrays import F32, Array
from engine.formats.codes import bf16_to_f32
from engine.formats.grouped_bytes import Coding, GroupedBytes, grouped
from engine.formats.groups import GroupKind, Groups, ScaleKind


class FormatError(ValueError):
    """Arrays that do not fit together as the format says; the message names shapes and dtypes."""


class StoredMatrix(ABC):
    """A matrix [rows, cols] = [outputs, inputs] in the dtype of its checkpoint. Immutable; holds views, not
    copies.
    """

    rows: int
    cols: int

    @abstractmethod
    def f32(self) -> F32:
        """The exact values (scales multiplied in f32), [rows, cols]: the plain reference of the format."""

    @abstractmethod
    def grouped_bytes(self) -> GroupedBytes:
        """The same values as the packing kernels take them from memory."""

    @abstractmethod
    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Self:
        """Every `step`-th row from `first`, `count` in all (None: to the end)."""

    def stored_as(self) -> tuple[GroupKind, ScaleKind] | None:
        """Kind and scale type of `groups()`, without decoding anything; None for floats."""
        return None

    def groups(self) -> Groups | None:
        """The integer view, where the format stores integers in groups of 32; None for floats."""
        return None


def rows_of(rows: int, first: int, step: int, count: int | None) -> slice:
    """The slice for `take`; FormatError when it asks for rows that are not there."""
    available = max(0, -(-(rows - first) // step))
    wanted = available if count is None else count
    if not 0 <= first <= rows or step < 1 or wanted > available:
        raise FormatError(
            f"{wanted} rows from {first} in steps of {step} are asked of a matrix of {rows} rows"
        )
    return slice(first, first + wanted * step, step)


class _Plain(StoredMatrix):
    """Floats stored one by one: `values` [rows, cols] of numpy dtype `dtype`."""

    name: Coding
    dtype: np.dtype[np.generic]

    def __init__(self, values: Array) -> None:
        if values.ndim != 2 or values.dtype != self.dtype:
            raise FormatError(
                f"a {self.name} matrix needs {self.dtype} [rows, cols], not {values.dtype} "
                f"{list(values.shape)}"
            )
        self.values = values
        self.rows, self.cols = values.shape

    def grouped_bytes(self) -> GroupedBytes:
        return grouped(self.name, self.cols, self.values)

    def take(self, first: int = 0, step: int = 1, count: int | None = None) -> Self:
        return type(self)(self.values[rows_of(self.rows, first, step, count)])

    def transposed(self) -> Self:
        """For checkpoints that store [inputs, outputs]."""
        return type(self)(self.values.T)


class F32Matrix(_Plain):
    """IEEE single precision."""

    name, dtype = "f32", np.dtype(np.float32)

    def f32(self) -> F32:
        return np.ascontiguousarray(self.values)


class F16Matrix(_Plain):
    """IEEE half precision."""

    name, dtype = "f16", np.dtype(np.float16)

    def f32(self) -> F32:
        return self.values.astype(np.float32)


class BF16Matrix(_Plain):
    """bfloat16 as its uint16 bits."""

    name, dtype = "bf16", np.dtype(np.uint16)

    def f32(self) -> F32:
        return bf16_to_f32(np.ascontiguousarray(self.values))
