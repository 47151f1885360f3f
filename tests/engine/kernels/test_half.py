"""f32 rounded to f16 as NumPy rounds it."""

import numpy as np
import pytest

from engine.kernels import narrow


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 4096, 300_001])
def test_rounds_as_numpy(count: int) -> None:
    luck = np.random.default_rng(count)
    x = luck.standard_normal((count, 1), np.float32) * np.float32(10) ** luck.uniform(-9, 6, (count, 1))
    x = x.astype(np.float32)
    special = [65519.9, 65520, -0.0, 1e-8, 5.96e-8, 2.0**-25, np.inf, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    x[: len(special), 0] = special[:count]
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    out = np.empty_like(expected)
    narrow(x, out)
    np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))


def test_takes_what_lies_apart_and_other_caches() -> None:
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    apart, wide = np.empty((4, 8), np.float16), np.empty((4, 16), np.float32)
    narrow(x[:, ::2], apart)
    narrow(x, wide)
    np.testing.assert_array_equal(apart, x[:, ::2])
    np.testing.assert_array_equal(wide, x)
