"""Choosing tokens: each setting against a plain calculation, and luck that is the same everywhere."""

import math
from typing import Any

import numpy as np
import pytest

from engine.errors import SettingsError
from engine.sampling import (
    Sampler,
    Sampling,
    candidates,
    draw,
    is_computed,
    log_probabilities,
    top_tokens,
    uniform,
)

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -4.0, 0.5], np.float32)


def drawn(settings: Sampling, logits: np.ndarray[Any, Any] = LOGITS, count: int = 400) -> list[int]:
    sampler = Sampler(settings)
    return [sampler.choose(logits) for _ in range(count)]


def test_greedy_takes_the_best_and_the_lower_of_equals() -> None:
    assert Sampler(Sampling()).choose(LOGITS) == 1
    assert drawn(Sampling(temperature=5.0, top_k=1), count=5) == [1] * 5


def test_logits_are_left_alone() -> None:
    logits = LOGITS.copy()
    Sampler(Sampling(temperature=1.0, logit_bias={0: 5.0}, repeat_penalty=2.0), [1]).choose(logits)
    np.testing.assert_array_equal(logits, LOGITS)


def test_frequencies_follow_the_probabilities() -> None:
    tokens = drawn(Sampling(temperature=1.0, seed=3), count=20_000)
    weights = np.exp(LOGITS.astype(np.float64))
    expected = weights / weights.sum()
    found = np.bincount(tokens, minlength=len(LOGITS)) / len(tokens)
    np.testing.assert_allclose(found, expected, atol=4 * math.sqrt(0.25 / len(tokens)))


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    assert drawn(Sampling(temperature=1.0, seed=7)) == drawn(Sampling(temperature=1.0, seed=7))
    assert drawn(Sampling(temperature=1.0, seed=7)) != drawn(Sampling(temperature=1.0, seed=8))


def test_luck_is_fixed_for_all_time() -> None:
    fixed = {(0, 0): "0x1.2086089bfcf34p-2", (0, 1): "0x1.39e917d5f69e1p-1", (1, 0): "0x1.b9c847f90581ap-1"}
    assert {key: uniform(*key).hex() for key in fixed} == fixed
    assert uniform((1 << 64) - 1, 5).hex() == "0x1.3d17a660d74d4p-2"
    values = np.array([uniform(12345, n) for n in range(20_000)])
    assert 0 <= values.min() < 0.001
    assert 0.999 < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        (Sampling(temperature=1.0, top_k=2), [1, 3]),
        (Sampling(temperature=1.0, top_k=3), [1, 3, 2]),
        (Sampling(temperature=1.0, top_p=0.5), [1, 3]),
        (Sampling(temperature=1.0, top_p=0.0), [1]),
        (Sampling(temperature=1.0, top_p=0.95), [1, 3, 2, 0]),
        (Sampling(temperature=1.0, min_p=0.3), [1, 3, 2]),
        (Sampling(temperature=1.0, min_p=1.0), [1, 3]),
        (Sampling(temperature=0.01, min_p=0.0), [1, 3]),
        (Sampling(temperature=1.0), [1, 3, 2, 0, 5, 4]),
    ],
)
def test_cuts_keep_the_best(settings: Sampling, tokens: list[int]) -> None:
    kept, weights = candidates(LOGITS, settings)
    assert kept.tolist() == tokens
    assert (np.diff(weights) <= 0).all()


def test_drawing_walks_the_running_sum() -> None:
    weights = np.array([0.5, 0.25, 0.25])
    assert [draw(weights, luck) for luck in (0.0, 0.49, 0.5, 0.74, 0.75, 0.999)] == [0, 0, 1, 1, 2, 2]


def test_bias_adds_and_forbids() -> None:
    assert Sampler(Sampling(logit_bias={4: 100.0, 999: 5.0})).choose(LOGITS) == 4
    assert Sampler(Sampling(logit_bias={1: -100.0})).choose(LOGITS) == 3


def test_repeat_penalty_divides_what_is_positive_and_multiplies_what_is_not() -> None:
    sampler = Sampler(Sampling(repeat_penalty=2.0), prompt=[1, 3, 4])
    adjusted = sampler._adjusted(LOGITS)
    np.testing.assert_array_equal(adjusted, np.array([1, 1.5, 2, 1.5, -8, 0.5], np.float32))
    windowed = Sampler(Sampling(repeat_penalty=2.0, repeat_window=1), prompt=[1, 3])
    assert windowed.choose(LOGITS) == 1
    assert windowed.choose(LOGITS) == 3


def test_presence_and_frequency_penalties_count_the_reply_only() -> None:
    sampler = Sampler(Sampling(presence_penalty=0.5, frequency_penalty=0.25), prompt=[1, 1, 1])
    assert [sampler.choose(LOGITS) for _ in range(3)] == [1, 3, 1]
    np.testing.assert_array_equal(
        sampler._adjusted(LOGITS), np.array([1, 3 - 1.0, 2, 3 - 0.75, -4, 0.5], np.float32)
    )


class OnlyEven:
    """Allows even tokens, and remembers what came."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def allowed(self) -> np.ndarray[Any, Any] | None:
        return None if len(self.accepted) > 1 else np.arange(6) % 2 == 0

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def restart(self) -> None:
        self.accepted.clear()


def test_a_constraint_is_asked_and_told() -> None:
    constraint = OnlyEven()
    sampler = Sampler(Sampling(), constraint=constraint)
    assert [sampler.choose(LOGITS) for _ in range(3)] == [2, 2, 1]
    assert constraint.accepted == [2, 2, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"top_k": -1},
        {"repeat_penalty": 0.0},
        {"repeat_window": -2},
        {"seed": -1},
        {"seed": 1 << 64},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: 1e300}},
        {"presence_penalty": math.inf},
    ],
)
def test_settings_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Sampling(**wrong)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("count", [1, len(LOGITS)])
def test_logits_that_are_no_numbers_are_noticed(wrong: float, count: int) -> None:
    logits = LOGITS.copy()
    logits[2 : 2 + count] = wrong
    assert not is_computed(logits)
    assert is_computed(LOGITS)
    assert is_computed(np.array([-np.inf, 1.0], np.float32))  # a token that the model never says
    assert not is_computed(np.full(3, -np.inf, np.float32))


def test_log_probabilities_and_the_best_of_them() -> None:
    luck = np.random.default_rng(5)
    logits = (luck.standard_normal(50_000) * 3).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    values = log_probabilities(logits)
    np.testing.assert_allclose(values, expected, atol=1e-5)
    best = list(top_tokens(values, 3))
    assert [token for token, _ in best] == np.argsort(-values, kind="stable")[:3].tolist()
    assert list(top_tokens(np.array([1.0, 2.0, 2.0]), 2)) == [(1, 2.0), (2, 2.0)]
    assert list(top_tokens(values, 0)) == []
