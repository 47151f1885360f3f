"""Choosing keys, pooling entries and mixing streams, each against a plain reference in f64, and a row alone
against that row in a batch."""

import numpy as np
import pytest

from engine.arrays import F32, I32
from engine.kernels.compress import expand_pools, join_places, pool_windows
from engine.kernels.hyper import collapse, spread, stream_weights
from engine.kernels.indexer import choose_keys
from tests.engine.kernels.digests import normal


def best(q: F32, weights: F32, keys: F32, count: int, most: int) -> list[int]:
    scores = np.maximum(q.astype(np.float64) @ keys[:count].T.astype(np.float64) * 0.3, 0)
    total = (weights.astype(np.float64)[:, None] * scores).sum(0)
    return sorted(np.argsort(-total, kind="stable")[:most].tolist())


@pytest.mark.parametrize(
    ("width", "dtype"), [(32, np.float32), (24, np.float32), (32, np.float16), (20, np.float16)]
)
def test_the_best_keys_are_chosen(width: int, dtype: type) -> None:
    q, weights, keys = normal(1, 5, 6, width), normal(2, 5, 6), normal(3, 700, width).astype(dtype)
    counts = np.array([700, 37, 0, 38, 290], np.int32)
    chosen = choose_keys(q, weights, keys, counts, 37, scale=0.3)
    assert chosen.shape == (5, 37)
    for n, count in enumerate(counts):
        expected = best(q[n], weights[n], keys.astype(np.float32), int(count), 37)
        assert chosen[n, : len(expected)].tolist() == expected
        assert (chosen[n, len(expected) :] == -1).all()
        alone = choose_keys(q[n : n + 1], weights[n : n + 1], keys, counts[n : n + 1], 37, scale=0.3)
        assert alone[0].tolist() == chosen[n, : min(37, count)].tolist()


def test_of_equal_scores_the_lower_numbers_win() -> None:
    keys = np.zeros((50, 16), np.float32)
    keys[[20, 30]] = 1
    q, weights = np.ones((2, 1, 16), np.float32), np.array([[1], [-1]], np.float32)
    chosen = choose_keys(q, weights, keys, np.full(2, 50, np.int32), 4, scale=1.0)
    assert chosen.tolist() == [[0, 1, 20, 30], [0, 1, 2, 3]]  # minus zero counts as zero


def test_keys_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        choose_keys(
            normal(1, 1, 2, 8), normal(2, 1, 2), normal(3, 4, 8), np.array([5], np.int32), 2, scale=1.0
        )


@pytest.mark.parametrize("overlap", [False, True])
def test_entries_are_means_weighted_by_a_softmax(overlap: bool) -> None:
    ratio, dim, start = 3, 5, 3
    width = 2 * dim if overlap else dim
    values, gates, bias = normal(4, 20, width), normal(5, 20, width), normal(6, ratio, width)
    first = 2 if overlap else 1
    pooled = pool_windows(values, gates, bias, start, first, 4, overlap=overlap)
    for e in range(4):
        rows = np.arange((first + e) * ratio, (first + e + 1) * ratio) - start
        score = (gates[rows] + bias)[:, -dim:].astype(np.float64)
        value = values[rows][:, -dim:].astype(np.float64)
        if overlap:
            score = np.concatenate([(gates[rows - ratio] + bias)[:, :dim], score])
            value = np.concatenate([values[rows - ratio][:, :dim], value])
        share = np.exp(score)
        np.testing.assert_allclose(pooled[e], (share * value).sum(0) / share.sum(0), rtol=2e-6, atol=2e-6)
        np.testing.assert_array_equal(
            pool_windows(values, gates, bias, start, first + e, 1, overlap=overlap)[0], pooled[e]
        )


def test_the_first_entry_has_no_window_before_it() -> None:
    values, gates, bias = normal(4, 6, 10), normal(5, 6, 10), normal(6, 3, 10)
    own = [np.ascontiguousarray(x[:, 5:]) for x in (values, gates, bias)]
    plain = pool_windows(own[0], own[1], own[2], 0, 0, 1)
    np.testing.assert_array_equal(pool_windows(values, gates, bias, 0, 0, 1, overlap=True), plain)
    with pytest.raises(ValueError, match="cannot be pooled"):
        pool_windows(values, gates, bias, 3, 1, 1, overlap=True)


def test_places_are_the_last_tokens_and_then_entries() -> None:
    positions, counts = np.array([6, 7], np.int32), np.array([1, 2], np.int32)
    assert join_places(positions, 3, 4, 100, counts).tolist() == [[0, 1, 2, 100, -1], [1, 2, 3, 100, 101]]
    chosen: I32 = np.array([[0, -1], [0, 1]], np.int32)
    assert join_places(positions, 3, 4, 50, counts, chosen).tolist() == [[0, 1, 2, 50, -1], [1, 2, 3, 50, 51]]


def test_pools_are_expanded_and_the_open_one_added() -> None:
    pools = np.array([[0, 2], [1, -1]], np.int32)
    expanded = expand_pools(pools, np.array([9, 8], np.int32), 3)
    assert expanded.tolist() == [[0, 1, 2, 6, 7, 8, 9, -1], [3, 4, 5, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize(("streams", "rounds"), [(4, 20), (3, 1), (1, 2)])
def test_stream_weights_are_those_of_sinkhorn(streams: int, rounds: int) -> None:
    count, floor = 3, 1e-3
    size = (2 + streams) * streams
    raw, base, scale = normal(7, count, size), normal(8, size), normal(9, 3)
    pre, post, comb = stream_weights(raw, base, scale, floor, rounds)
    x = raw.astype(np.float64) * np.repeat(scale, [streams, streams, streams * streams]) + base
    np.testing.assert_allclose(pre, 1 / (1 + np.exp(-x[:, :streams])) + floor, rtol=1e-5)
    np.testing.assert_allclose(post, 2 / (1 + np.exp(-x[:, streams : 2 * streams])), rtol=1e-5)
    mixed = np.exp(x[:, 2 * streams :].reshape(count, streams, streams))
    mixed = mixed / mixed.sum(2, keepdims=True) + floor
    mixed /= mixed.sum(1, keepdims=True) + floor
    for _ in range(rounds - 1):
        mixed /= mixed.sum(2, keepdims=True) + floor
        mixed /= mixed.sum(1, keepdims=True) + floor
    np.testing.assert_allclose(comb, mixed, rtol=1e-5)
    alone = stream_weights(raw[1:2], base, scale, floor, rounds)
    for one, all_rows in zip(alone, (pre, post, comb), strict=True):
        np.testing.assert_array_equal(one[0], all_rows[1])


def test_streams_are_added_up_and_spread() -> None:
    x, y, post, comb = normal(1, 3, 4, 21), normal(2, 3, 21), normal(3, 3, 4), normal(4, 3, 4, 4)
    np.testing.assert_allclose(collapse(x, post), np.einsum("nmd,nm->nd", x, post), rtol=1e-4, atol=1e-5)
    expected = post[:, :, None] * y[:, None] + np.einsum("njk,njd->nkd", comb, x)
    after = spread(x, y, post, comb)
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(spread(x[2:], y[2:], post[2:], comb[2:])[0], after[2])
