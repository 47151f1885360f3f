"""Attention against softmax(q · k) · v with the whole matrix; decode, prefill and any chunks of it
give the same bits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.kernels import attention, sequence_attention, takes_sequences
from tests.engine.kernels.digests import normal

COUNT, SCALE = 270, 0.2
F32 = npt.NDArray[np.float32]


def reference(q: F32, k: Any, v: Any, positions: Any, options: dict[str, Any]) -> npt.NDArray[np.float64]:
    shared = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(cache.astype(np.float64), shared, 1) for cache in (k, v))
    scores = np.einsum("nhd,thd->nht", q.astype(np.float64), wide_k) * SCALE
    distance = positions[:, None] - np.arange(len(k))[None]
    seen = (distance >= 0) & (distance < options.get("window", 1 << 30))
    if "keys" in options:
        seen = np.zeros(distance.shape, bool)
        for n, chosen in enumerate(options["keys"]):
            seen[n, chosen[chosen >= 0]] = True
    if "bias" in options:
        bias = options["bias"]
        row, key = np.nonzero((distance >= 0) & (distance < bias.shape[2]))
        scores[row, :, key] += bias[row, :, distance[row, key]]
    scores = np.where(seen[:, None], scores, -np.inf)
    sinks = options.get("sinks", np.full(q.shape[1], -np.inf))
    top = np.maximum(scores.max(2), sinks)[:, :, None]
    weights = np.exp(scores - top)
    total = weights.sum(2, keepdims=True) + np.exp(sinks[None, :, None] - top)
    return np.asarray(np.einsum("nht,thd->nhd", weights / total, wide_v))


def chosen_keys(heads: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    keys = np.full((COUNT, 150), -1, np.int32)
    for n in range(COUNT):
        some = np.sort(rng.permutation(n + 1)[:150])
        keys[n, : len(some)] = some
    return {"keys": keys}


OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "plain": lambda heads: {},
    "window": lambda heads: {"window": 10},
    "wide window and sinks": lambda heads: {"window": 140, "sinks": normal(4, heads)},
    "keys": chosen_keys,
    "bias": lambda heads: {"bias": normal(5, COUNT, heads, 50)},
}
SHAPES: dict[str, tuple[int, int, int, int, Any]] = {  # heads, key heads, dimension of keys, of values
    "grouped": (4, 2, 64, 32, np.float16),
    "odd": (2, 2, 40, 24, np.float16),
    "f32": (4, 1, 48, 32, np.float32),
}


def of(options: dict[str, Any], rows: slice) -> dict[str, Any]:
    return {name: value[rows] if name in ("keys", "bias") else value for name, value in options.items()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_against_the_whole_matrix(shape: str, option: str) -> None:
    heads, key_heads, key_dim, value_dim, dtype = SHAPES[shape]
    q = normal(1, COUNT, heads, key_dim)
    k, v = (normal(2 + i, COUNT, key_heads, dim).astype(dtype) for i, dim in enumerate((key_dim, value_dim)))
    positions, options = np.arange(COUNT, dtype=np.int32), OPTIONS[option](heads)
    y = attention(q, k, v, positions, scale=SCALE, **options)
    assert np.abs(y - reference(q, k, v, positions, options)).max() < 5e-6
    for rows in (slice(0, 1), slice(127, 129), slice(200, COUNT), slice(COUNT - 1, COUNT)):
        some = attention(q[rows], k, v, positions[rows], scale=SCALE, **of(options, rows))
        assert (some.view(np.uint32) == y[rows].view(np.uint32)).all()


def test_a_cache_that_starts_later() -> None:
    q, k, v = normal(1, 1, 2, 16), normal(2, 200, 2, 16), normal(3, 200, 2, 16)
    at = np.array([199], np.int32)
    whole = attention(q, k, v, at, scale=SCALE, window=20)
    cut = attention(q, k[150:].copy(), v[150:].copy(), at, scale=SCALE, window=20, start=150)
    assert (whole == cut).all()


def test_values_can_be_part_of_the_keys() -> None:
    q, k = normal(1, 3, 4, 48), normal(2, 60, 1, 48)
    at = np.array([5, 30, 59], np.int32)
    latent = attention(q, k, k, at, scale=SCALE, value_dim=32)
    assert (latent == attention(q, k, k[:, :, :32].copy(), at, scale=SCALE)).all()


def test_errors() -> None:
    q, k, at = normal(1, 1, 3, 16), normal(2, 8, 2, 16), np.array([3], np.int32)
    with pytest.raises(ValueError, match="3 heads, 2 key"):
        attention(q, k, k, at, scale=1.0)
    with pytest.raises(ValueError, match="within the cache"):
        attention(q[:, :2], k, k, np.array([8], np.int32), scale=1.0)
    assert attention(q[:0, :2], k, k, at[:0], scale=1.0).shape == (0, 2, 16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", [option for option in OPTIONS if option != "keys"])
@pytest.mark.parametrize("counts", [(1,), (1, 1, 1, 1, 1), (3, 1, 37, 1)], ids=str)
def test_sequences_together_get_what_each_gets_alone(
    shape: str, option: str, counts: tuple[int, ...]
) -> None:
    heads, kv_heads, dim, width, dtype = SHAPES[shape]
    if not takes_sequences(np.dtype(dtype), len(counts), 0):
        pytest.skip("this processor has no instruction for f16")
    befores, total = [0, 200, 5, 131, 64][: len(counts)], sum(counts)
    q, k, v = normal(1, total, heads, dim), normal(2, total, kv_heads, dim), normal(3, total, kv_heads, width)
    options = OPTIONS[option](heads)
    positions = np.concatenate(
        [np.arange(before, before + count) for before, count in zip(befores, counts, strict=True)]
    ).astype(np.int32)
    alone, lines, caches, first = [], [], [], 0
    for place, (before, count) in enumerate(zip(befores, counts, strict=True)):
        rows = slice(first, first + count)
        start = max(before - 20, 0) if option == "window" else 0  # what no row sees may be gone
        held = before - start
        keys = normal(10 + place, held + count + 7, kv_heads, dim).astype(dtype)
        values = normal(20 + place, held + count + 7, kv_heads, width).astype(dtype)
        caches.append((keys.copy(), values.copy()))
        keys[held : held + count], values[held : held + count] = k[rows], v[rows]
        alone.append(
            attention(q[rows], keys, values, positions[rows], scale=SCALE, start=start, **of(options, rows))
        )
        lines.append((first, count, *(part.ctypes.data for part in caches[-1]), len(keys), start))
        first += count
    found = sequence_attention(
        q, k, v, np.array(lines, np.int64), np.dtype(dtype), positions,
        int(positions.max()), scale=SCALE,
        **of(options, slice(0, total)),
    )  # fmt: skip
    assert found.tobytes() == np.concatenate(alone).tobytes()
