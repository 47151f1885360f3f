"""Elementwise functions, norms, rotary embedding and choice of the best against f64."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from engine import kernels
from engine.kernels import Activation
from tests.engine.kernels.digests import normal

X = normal(1, 2000) * np.float32(6)
WIDE = X.astype(np.float64)


def units(values: npt.NDArray[np.float32], expected: npt.NDArray[np.float64]) -> float:
    """The largest error in units of the last place of the expected f32."""
    spacing = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    return float((np.abs(values - expected) / spacing).max())


@pytest.mark.parametrize(
    ("name", "x", "expected", "limit"),
    [
        ("exp", X, np.exp(WIDE), 1.5),
        ("sigmoid", X, 1 / (1 + np.exp(-WIDE)), 3),
        ("silu", X, WIDE / (1 + np.exp(-WIDE)), 3),
        ("tanh", X, np.tanh(WIDE), 5),
        ("softplus", X, np.logaddexp(0, WIDE), 1.5),
        ("log", np.abs(X), np.log(np.abs(WIDE)), 1),
        ("log1p", np.abs(X), np.log1p(np.abs(WIDE)), 1),
        ("log_sigmoid", X, -np.logaddexp(0, -WIDE), 1.5),
        ("erf", X, np.array([math.erf(value) for value in WIDE]), 1),
    ],
)
def test_accuracy(
    name: str, x: npt.NDArray[np.float32], expected: npt.NDArray[np.float64], limit: float
) -> None:
    assert units(getattr(kernels, name)(x), expected) <= limit


def test_gelu() -> None:
    exact = WIDE * 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in WIDE]))
    assert np.abs(kernels.gelu(X) - exact).max() < 1e-6
    inner = math.sqrt(2 / math.pi) * (WIDE + 0.044715 * WIDE**3)
    assert np.abs(kernels.gelu_tanh(X) - 0.5 * WIDE * (1 + np.tanh(inner))).max() < 2e-6


def test_ends_of_the_range() -> None:
    ends = np.array([-np.inf, -104, 0, 89, np.inf], np.float32)
    assert kernels.exp(ends).tolist() == [0, 0, 1, math.inf, math.inf]
    assert kernels.log(np.array([0, 1, np.inf], np.float32)).tolist() == [-math.inf, 0, math.inf]
    assert np.isnan(kernels.log(np.array([-1], np.float32))).all()
    assert kernels.sigmoid(np.array([-200, 200], np.float32)).tolist() == [0, 1]
    assert kernels.silu(np.array([-200], np.float32))[0] == 0
    assert kernels.tanh(np.array([-50, 0, 50], np.float32)).tolist() == [-1, 0, 1]


def test_activations() -> None:
    g, u = X[:500], X[500:1000]
    gate, up = np.minimum(g, 7).astype(np.float64), np.clip(u, -7, 7).astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-gate))
    expected = {
        "clamped_silu": gate * sigmoid * up,
        "gpt_oss": (up + 1) * gate / (1 + np.exp(-1.702 * gate)),
    }
    for kind, wanted in expected.items():
        y = kernels.activation(Activation(kind, limit=7.0), g, u)  # type: ignore[arg-type]
        assert np.abs(y - wanted).max() <= 1e-5 * np.abs(wanted).max()
    wide, other = g.astype(np.float64), u.astype(np.float64)
    situ = 4 * np.tanh(wide / 4) / (1 + np.exp(-wide)) * 25 * np.tanh(other / 25)
    y = kernels.activation(Activation("situ", limit=25.0, beta=4.0), g, u)
    assert np.abs(y - situ).max() <= 1e-5 * np.abs(situ).max()


def test_plain_gatings() -> None:
    g, u = X[:500] / np.float32(2), X[500:1000]
    x = g.astype(np.float64)
    gelu = x * 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in x]))
    shifted = np.array([math.erf((value - 0.707107) / (0.282095 * math.sqrt(2))) for value in x])
    expected = {
        "gelu": gelu,
        "gelu_10": np.clip(gelu, -10, 10),
        "relu": np.maximum(x, 0),
        "relu2": np.maximum(x, 0) ** 2,
        "relu6": np.clip(x, 0, 6),
        "leaky_relu": np.where(x > 0, x, 0.01 * x),
        "hardswish": x * np.clip(x + 3, 0, 6) / 6,
        "quick_gelu": x / (1 + np.exp(-1.702 * x)),
        "mish": x * np.tanh(np.logaddexp(0, x)),
        "tanh": np.tanh(x),
        "sigmoid": 1 / (1 + np.exp(-x)),
        "laplace": 0.5 * (1 + shifted),
        "sqrtsoftplus": np.sqrt(np.logaddexp(0, x)),
        "linear": x,
    }
    for kind, wanted in expected.items():
        y = kernels.activation(Activation(kind), g, u)  # type: ignore[arg-type]
        assert np.abs(y - wanted * u).max() <= 1e-5 * np.abs(wanted * u).max(), kind
    clamped = kernels.activation(Activation("relu", limit=2.0), g, u)
    assert (clamped == np.clip(g, 0, 2) * np.clip(u, -2, 2)).all()


def test_norms() -> None:
    x = normal(2, 4, 60)
    wide = x.astype(np.float64)
    weight, bias = normal(3, 60), normal(4, 60)
    root = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    assert np.abs(kernels.rms_norm(x, weight, 1e-6) - root * weight).max() < 1e-5
    assert np.abs(kernels.rms_norm(x, None, 1e-6) - root).max() < 1e-5
    assert np.abs(kernels.rms_norm(x, weight, 1e-6, plus_one=True) - root * (1 + weight)).max() < 1e-5
    heads = wide.reshape(4, 3, 20)
    by_head = heads / np.sqrt((heads**2).mean(2, keepdims=True) + 1e-6)
    once = kernels.rms_norm(x, weight[:20], 1e-6, width=20)
    assert np.abs(once - (by_head * weight[:20]).reshape(4, 60)).max() < 1e-5
    own = kernels.rms_norm(x, weight, 1e-6, width=20)
    assert np.abs(own - by_head.reshape(4, 60) * weight).max() < 1e-5
    centred = wide - wide.mean(1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * weight + bias
    assert np.abs(kernels.layer_norm(x, weight, bias, 1e-6) - layer).max() < 1e-5
    length = np.sqrt((wide**2).sum(1, keepdims=True) + 1e-6)
    assert np.abs(kernels.l2_normalize(x, 1e-6) - wide / length).max() < 1e-6
    soft = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    assert np.abs(kernels.softmax(x) - soft).max() < 1e-6
    with pytest.raises(ValueError, match="does not fit"):
        kernels.rms_norm(x, weight[:7], 1e-6)


def test_sums_have_one_order() -> None:
    x = np.zeros((1, 40), np.float32)
    x[0, [0, 16, 32, 8]] = [
        1,
        1e8,
        -1e8,
        3,
    ]  # lane 0 adds 1, 1e8, -1e8 in this order; lane 8 joins afterwards
    assert kernels.sums(x).tolist() == [3]
    assert kernels.dots(x, np.ones((1, 40), np.float32)).tolist() == [3]
    long = normal(5, 3, 77)
    assert np.abs(kernels.sums(long) - long.astype(np.float64).sum(1)).max() < 1e-4
    assert np.abs(kernels.dots(long, long) - (long.astype(np.float64) ** 2).sum(1)).max() < 1e-4


def test_topk_prefers_the_lower_index() -> None:
    scores = np.array([[1, 3, 3, 2, 5, 3], [-1, -2, -3, -4, -5, -6]], np.float32)
    ids, values = kernels.topk(scores, 4)
    assert ids.tolist() == [[4, 1, 2, 5], [0, 1, 2, 3]]
    assert values.tolist() == [[5, 3, 3, 3], [-1, -2, -3, -4]]
    assert kernels.topk(scores, 0)[0].shape == (2, 0)
    with pytest.raises(ValueError, match="7 of 6"):
        kernels.topk(scores, 7)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved: bool) -> None:
    frequencies = kernels.inverse_frequencies(16, 1e6)
    assert np.abs(frequencies - 1e6 ** (-np.arange(0, 16, 2) / 16)).max() < 1e-15
    positions = np.array([0, 7, 123456])
    cos, sin = kernels.rope_tables(positions, frequencies, 1.5)
    angle = positions[:, None] * frequencies
    assert np.abs(cos - 1.5 * np.cos(angle)).max() < 2e-7
    x = normal(3, 3, 2, 24)
    y = kernels.rope(x, cos, sin, interleaved=interleaved, first=4)
    pairs = [(4 + 2 * i, 5 + 2 * i) if interleaved else (4 + i, 12 + i) for i in range(8)]
    for i, (a, b) in enumerate(pairs):
        turned = (x[:, :, a] + 1j * x[:, :, b]) * (cos[:, i] + 1j * sin[:, i])[:, None]
        assert np.abs(y[:, :, a] - turned.real).max() < 1e-5
        assert np.abs(y[:, :, b] - turned.imag).max() < 1e-5
    assert (y[:, :, :4] == x[:, :, :4]).all()
    assert (y[:, :, 20:] == x[:, :, 20:]).all()
    back = kernels.inverse_rope(y, cos, sin, interleaved=interleaved, first=4) / np.float32(1.5**2)
    assert np.abs(back[:, :, 4:20] - x[:, :, 4:20]).max() < 1e-5
