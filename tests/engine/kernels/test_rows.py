"""The rounding of activations against its definition, written out."""

import numpy as np
import pytest

from engine.arrays import Array
from engine.kernels import Rows, quantize_rows
from tests.engine.kernels.digests import normal


def halves(q: Array) -> Array:
    """Of every 32 values the sum of the first two of every 4 and that of the others, i16 [N, groups, 2]."""
    return q.reshape(len(q), -1, 8, 2, 2).sum((2, 4), dtype=np.int16)


def test_rule() -> None:
    x = normal(1, 3, 70)
    x[1, 32:64] = 0
    x[2, :3] = [254, 1, 3]
    x[2, 3:32] = 0
    rows = quantize_rows(x)
    padded = np.zeros((3, 96), np.float32)
    padded[:, :70] = x
    grouped = padded.reshape(3, 3, 32)
    scale = np.abs(grouped).max(2) / np.float32(127)
    assert (rows.scale == scale).all()
    divisor = np.where(scale == 0, np.float32(1), scale)[:, :, None]
    assert (rows.q.reshape(3, 3, 32) == np.rint(grouped / divisor)).all()
    assert (rows.sums.view(np.int16).reshape(3, 3, 2) == halves(rows.q)).all()
    assert rows.q[2, :3].tolist() == [127, 0, 2]
    assert rows.f32().shape == (3, 70)


def test_tiny_and_huge_values() -> None:
    x = np.array([[1e-45, 0, -1e-45], [3e38, -3e38, 1]], np.float32)
    rows = quantize_rows(x)
    assert rows.q[0].tolist() == [0] * 32  # the scale underflows to zero
    assert rows.q[1, :3].tolist() == [127, -127, 0]


def test_rows_from_elsewhere_are_checked() -> None:
    scale = np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match="-128"):
        Rows.of(np.full((1, 32), -128, np.int8), scale)
    with pytest.raises(ValueError, match="int8"):
        Rows.of(np.zeros((1, 31), np.int8), scale)
    with pytest.raises(ValueError, match="cannot have scales"):
        Rows.of(np.zeros((1, 64), np.int8), scale)
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="no finite number"):
            Rows.of(np.zeros((2, 32), np.int8), np.array([[1], [wrong]], np.float32))
    rows = quantize_rows(normal(2, 3, 70))
    assert (Rows.of(rows.q, rows.scale, 70).sums == rows.sums).all()
    least = np.full((1, 64), -127, np.int8)
    assert Rows.of(least, np.ones((1, 2), np.float32)).sums.view(np.int16).tolist() == [[-16 * 127] * 4]
