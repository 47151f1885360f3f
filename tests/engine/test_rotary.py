"""Rotary settings as configurations spell them, against plain formulas."""

import math
from typing import Any

import numpy as np
import pytest

from engine.config import Reader
from engine.errors import ConfigError
from engine.rotary import RopeSettings, Rotary, ln


def settings(config: dict[str, Any], context: int = 1000) -> RopeSettings:
    return RopeSettings.of(Reader(config), context=context)


PLAIN = 10000.0 ** (-np.arange(0, 32, 2) / 32)


def test_plain_frequencies() -> None:
    for config in (
        {},
        {"rope_theta": 10000},
        {"rope_scaling": None},
        {"rope_parameters": {"rope_theta": 10000.0}},
    ):
        rope = settings(config)
        np.testing.assert_allclose(rope.frequencies(32), PLAIN, rtol=1e-14)
        assert rope.table_scale() == 1.0
        assert rope.context(1000) == 1000


def test_linear_scaling_divides() -> None:
    rope = settings({"rope_scaling": {"type": "linear", "factor": 4}})
    np.testing.assert_allclose(rope.frequencies(32), PLAIN / 4, rtol=1e-14)


def test_llama3_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    given = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = settings({"rope_scaling": {**given, "original_max_position_embeddings": 512}})
    expected = []
    for frequency in PLAIN:
        length = 2 * math.pi / frequency
        if length < 512 / 4:
            expected.append(frequency)
        elif length > 512:
            expected.append(frequency / 8)
        else:
            smooth = (512 / length - 1) / 3
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    np.testing.assert_allclose(rope.frequencies(32), expected, rtol=1e-12)


def yarn(**more: Any) -> RopeSettings:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, **more}
    return settings({"rope_theta": 10000.0, "rope_scaling": scaling}, context=4096)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_ramp(truncate: bool) -> None:
    def pair(turns: float) -> float:
        return 32 * math.log(1024 / (turns * 2 * math.pi)) / (2 * math.log(10000))

    low, high = pair(32), pair(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    ramp = np.clip((np.arange(16) - low) / (high - low), 0, 1)
    rope = yarn(truncate=truncate)
    np.testing.assert_allclose(rope.frequencies(32), PLAIN / 4 * ramp + PLAIN * (1 - ramp), rtol=1e-12)
    assert rope.context(1024) == 4096


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 0.5}, 0.5),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"mscale": 1.0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_table_scale(more: dict[str, Any], scale: float) -> None:
    assert yarn(**more).table_scale() == pytest.approx(scale, rel=1e-14)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "longrope"}},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"type": "yarn", "factor": "4"}},
        {"rope_theta": "big"},
        {"rope_theta": 0},
        {"rope_theta": 10**400},
        {"rope_theta": 1e-320},
        {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": -1}},
        {"rope_scaling": {"type": "yarn", "factor": 4, "beta_slow": 1e-320}},
        {"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": -10}},
        {
            "rope_scaling": {
                "type": "longrope",
                "factor": 4,
                "original_max_position_embeddings": 1,
                "short_factor": [1.0],
                "long_factor": [1.0],
            }
        },
        {"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": -5}},
    ],
)
def test_what_is_not_understood_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings(config)


@pytest.mark.parametrize("interleaved", [True, False])
def test_turning_is_a_rotation_by_position(interleaved: bool) -> None:
    rotary = Rotary(PLAIN[:4], interleaved=interleaved, first=2)
    x = np.random.default_rng(1).standard_normal((3, 2, 12)).astype(np.float32)
    positions = np.array([0, 700, 5], np.int32)
    turned = rotary.turn(x, rotary.angles(positions))
    np.testing.assert_array_equal(turned[:, :, [0, 1, 10, 11]], x[:, :, [0, 1, 10, 11]])
    np.testing.assert_array_equal(turned[0], x[0])
    angle = positions[:, None] * PLAIN[:4]
    first = np.arange(2, 10, 2) if interleaved else np.arange(2, 6)
    second = first + (1 if interleaved else 4)
    z = x[:, :, first] + 1j * x[:, :, second]
    expected = z * np.exp(1j * angle)[:, None]
    np.testing.assert_allclose(turned[:, :, first], expected.real, atol=1e-6)
    np.testing.assert_allclose(turned[:, :, second], expected.imag, atol=1e-6)


def test_dimensions_come_in_pairs() -> None:
    with pytest.raises(ConfigError, match="must be pairs"):
        settings({}).frequencies(7)


def test_the_logarithm_is_rounded_right() -> None:
    assert [ln(value) for value in (1.0, 2.0, 10.0)] == [0.0, 0.6931471805599453, 2.302585092994046]


def longrope(**more: Any) -> RopeSettings:
    lists = {"short_factor": [1.0] * 16, "long_factor": [1 + pair for pair in range(16)]}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 100, **lists, **more}
    return settings({"rope_scaling": scaling}, context=1000)


def test_longrope_divides_by_one_list_or_the_other() -> None:
    rope = longrope()
    assert (rope.switches_at, rope.context(1000)) == (100, 1000)
    np.testing.assert_allclose(rope.frequencies(32), PLAIN, rtol=1e-14)
    np.testing.assert_allclose(rope.frequencies(32, long=True), PLAIN / np.arange(1, 17), rtol=1e-14)
    assert rope.table_scale() == pytest.approx(math.sqrt(1 + math.log(10) / math.log(100)), rel=1e-14)
    assert longrope(factor=2.0).table_scale() == pytest.approx(
        math.sqrt(1 + math.log(2) / math.log(100)), rel=1e-14
    )
    assert longrope(factor=0.5).table_scale() == 1.0
    assert longrope(attention_factor=1.7).table_scale() == 1.7
    for more in ({"long_factor": [1.0] * 15}, {"long_factor": [0.0] * 16}):
        with pytest.raises(ConfigError, match="long_factor has"):
            longrope(**more).frequencies(32, long=True)


def test_scaled_rotation_of_a_part_is_refused_where_whole_heads_are_turned() -> None:
    rope = yarn(partial_rotary_factor=0.5)
    assert len(rope.frequencies(32, 0.5)) == 8
    with pytest.raises(ConfigError, match="partial_rotary_factor"):
        rope.frequencies(32)
