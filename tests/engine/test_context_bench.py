"""Made-up models of every family: they run, and a filled state is one that decoding can go on from."""

import numpy as np
import pytest

from engine.context_bench import NoExperts, costs, filled, model_of
from engine.errors import SettingsError
from engine.models import Segment


@pytest.mark.parametrize("name", ["gpt_oss", "glm5_next", "deepseek_v4"])
def test_decoding_goes_on_from_a_filled_state(name: str) -> None:
    model = model_of(name)
    state = filled(model, 700)
    assert state.length == 700
    logits = model.forward([Segment(state, [1]), Segment(model.new_state(), [1])], NoExperts())
    assert state.length == 701
    assert np.isfinite(logits).all()
    assert logits[0].tolist() != logits[1].tolist()


def test_costs_are_positive_and_a_window_keeps_memory_small() -> None:
    few, many = costs(model_of("mixtral"), (100, 9000), runs=1)
    assert (few.positions, many.positions) == (100, 9000)
    assert 0 < few.low_s <= few.median_s <= few.high_s
    assert few.state_bytes < many.state_bytes < 9000 * 4 * 2 * 4 * 128 * 2


def test_unknown_shapes_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="no made-up shape of 'bert'"):
        model_of("bert")
