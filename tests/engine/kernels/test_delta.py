"""The delta rule and the short convolution against plain f64, and however the tokens are cut."""

import numpy as np
import numpy.typing as npt
import pytest

from engine.arrays import F32
from engine.kernels import sigmoid
from engine.kernels.convolution import causal_convolution
from engine.kernels.delta import COLUMNS, delta_rule, delta_state, forget

RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> F32:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(state: F32, width: int) -> npt.NDArray[np.float64]:
    """A state as [H, Dk, Dv]."""
    heads, tiles, depth, columns = state.shape
    return state.transpose(0, 2, 1, 3).reshape(heads, depth, tiles * columns)[:, :, :width].astype(np.float64)


@pytest.mark.parametrize(
    ("key_heads", "heads", "depth", "width", "factors"), [(2, 6, 16, 24, 1), (3, 3, 20, 70, 20)]
)
def test_tokens_write_and_ask_in_order(
    key_heads: int, heads: int, depth: int, width: int, factors: int
) -> None:
    count = 9
    q, k, v = (
        normal(count, key_heads, depth),
        normal(count, key_heads, depth) * np.float32(0.25),
        normal(count, heads, width),
    )
    decay, beta = sigmoid(normal(count, heads, factors)), sigmoid(normal(count, heads))
    shape = delta_state(heads, depth, width)
    before, after = np.zeros(shape, np.float32), np.full(shape, 7, np.float32)
    warm = delta_rule(q[:3], k[:3], v[:3], decay[:3], beta[:3], before, after)
    state = whole(before, width)
    for n, answers in enumerate(warm):
        for h in range(heads):
            key, asked = (x[n, h // (heads // key_heads)].astype(np.float64) for x in (k, q))
            state[h] *= decay[n, h][:, None]
            state[h] += np.outer(key, beta[n, h] * (v[n, h] - state[h].T @ key))
            np.testing.assert_allclose(answers[h], state[h].T @ asked, atol=1e-5)
    np.testing.assert_allclose(whole(after, width), state, atol=1e-5)
    assert not after[:, -1, :, width % COLUMNS or COLUMNS :].any()

    at_once = delta_rule(q, k, v, decay, beta, before, last := np.empty_like(before))
    np.testing.assert_array_equal(at_once[:3], warm)
    for n in range(3, count):
        one, following = slice(n, n + 1), np.empty_like(after)
        answer = delta_rule(q[one], k[one], v[one], decay[one], beta[one], after, following)
        np.testing.assert_array_equal(answer[0], at_once[n])
        after = following
    np.testing.assert_array_equal(after, last)


def test_gates_become_factors_of_decay() -> None:
    gate, bias, rate = normal(4, 3, 5) * 4, normal(3, 5), np.exp(normal(3))
    wide = (gate + bias).astype(np.float64)
    slopes = rate[:, None].astype(np.float64)
    np.testing.assert_allclose(
        forget(gate, bias, rate), np.exp(-slopes * np.logaddexp(0, wide)), rtol=1e-5, atol=1e-30
    )
    bounded = forget(gate, bias, rate, -5.0)
    np.testing.assert_allclose(bounded, np.exp(-5 / (1 + np.exp(-slopes * wide))), rtol=1e-5)
    assert bounded.min() >= np.exp(-5.0001)
    np.testing.assert_array_equal(forget(gate[2:3], bias, rate)[0], forget(gate, bias, rate)[2])


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_a_channel_mixes_its_last_values(taps: int) -> None:
    count, channels = 11, 37
    x, weight, bias, before = (
        normal(count, channels),
        normal(taps, channels),
        normal(channels),
        normal(taps - 1, channels),
    )
    after = np.empty_like(before)
    out = causal_convolution(x, weight, before, after, bias=bias, silu=True)
    rows = np.concatenate([before, x]).astype(np.float64)
    plain = bias + sum(weight[t] * rows[t : t + count] for t in range(taps))
    np.testing.assert_allclose(out, plain / (1 + np.exp(-plain)), atol=1e-5)
    np.testing.assert_array_equal(after, rows[count:].astype(np.float32))
    tail = before
    for n in range(count):
        following = np.empty_like(tail)
        one = causal_convolution(x[n : n + 1], weight, tail, following, bias=bias, silu=True)
        np.testing.assert_array_equal(one[0], out[n])
        tail = following
    np.testing.assert_array_equal(tail, after)


def test_what_does_not_fit_is_refused() -> None:
    state = np.zeros(delta_state(2, 4, 4), np.float32)
    q, v, beta = normal(1, 2, 4), normal(1, 2, 4), normal(1, 2)
    with pytest.raises(ValueError, match="do not fit"):
        delta_rule(q, q, v, normal(1, 2, 3), beta, state, state.copy())
    with pytest.raises(ValueError, match="do not fit"):
        forget(normal(1, 2, 4), normal(2, 3), normal(2))
    with pytest.raises(ValueError, match="do not fit"):
        causal_convolution(normal(3, 5), normal(4, 5), normal(2, 5), normal(3, 5))
