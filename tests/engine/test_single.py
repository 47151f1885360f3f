"""Tokens decoded alone go through alike layers in one call, and get the bits of the general way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine, Options
from engine.errors import Cancelled
from engine.experts import Stoppable
from engine.kernels import RowLayers
from engine.models import Segment
from engine.source import DirectorySource
from tests.engine.reference import feed, golden

CALLS = {"olmoe": 1, "olmoe-f16": 1, "qwen3_moe": 1, "mixtral-window": 1, "minimax_m2": 1, "gpt_oss": 1,
         "qwen3_moe-mixed": 2, "olmoe-gqa-clip": 0, "glm4_moe": 0}  # fmt: skip
"""Calls a token takes for all layers that have nothing but experts behind their attention."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers of each call that takes a row through whole layers."""
    made: list[int] = []
    run = RowLayers.__call__

    def counted(self: RowLayers, *given: Any) -> Any:
        made.append(len(self))
        return run(self, *given)

    monkeypatch.setattr(RowLayers, "__call__", counted)
    return made


@pytest.mark.parametrize("name", CALLS)
def test_tokens_alone_are_as_in_one_pass(oracle: Path, name: str, calls: list[int]) -> None:
    answers = golden(oracle / name)
    tokens = (answers.prompt + answers.greedy) * 4
    with Engine.open(DirectorySource(oracle / name), Options(weights="q8")) as engine:
        engine.bank.preload()
        tokens = tokens[: engine.model.context_length]
        whole = feed(engine, engine.model.new_state(), tokens)
        assert not calls
        growing = engine.model.new_state()
        for position, token in enumerate(tokens):
            np.testing.assert_array_equal(feed(engine, growing, [token])[0], whole[position])
    assert len(calls) == CALLS[name] * len(tokens)


def test_experts_that_are_not_all_in_memory_are_asked_for_layer_by_layer(
    oracle: Path, calls: list[int]
) -> None:
    with Engine.open(DirectorySource(oracle / "olmoe"), Options(weights="q8")) as engine:
        state = engine.model.new_state()
        first = feed(engine, state, [1])
        assert not calls
        engine.bank.preload()
        state.truncate(0)
        hits = engine.bank.stats.hits
        np.testing.assert_array_equal(feed(engine, state, [1]), first)
        assert calls == [len(engine.bank.layout.layers)]
        assert engine.bank.stats.hits - hits == calls[0] * engine.config.experts_per_token


def test_another_bank_is_asked_anew(oracle: Path) -> None:
    with (
        Engine.open(DirectorySource(oracle / "olmoe"), Options(weights="q8")) as one,
        Engine.open(DirectorySource(oracle / "olmoe"), Options(weights="q4")) as other,
    ):
        one.bank.preload()
        other.bank.preload()
        before = feed(one, one.model.new_state(), [1])
        one.experts = other.experts
        changed = feed(one, one.model.new_state(), [1])
        two = feed(one, one.model.new_state(), [1, 2])
        np.testing.assert_array_equal(changed[0], two[0])
        assert changed.tobytes() != before.tobytes()


def test_what_is_stopped_begins_no_call(oracle: Path, calls: list[int]) -> None:
    with Engine.open(DirectorySource(oracle / "olmoe"), Options(weights="q8")) as engine:
        engine.bank.preload()
        state = engine.model.new_state()
        with pytest.raises(Cancelled):
            engine.model.forward([Segment(state, [1])], Stoppable(engine.experts, lambda: True))
        assert state.length == 0
        assert not calls
