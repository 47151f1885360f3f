"""Sequences that outgrow longrope's original context: whatever way they were read, all of their positions are turned
by the long factors from there on, and by the short ones when they are cut back."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine.batch import ReplyBatch
from engine.doubts import forward
from engine.engine import Engine, Options
from engine.models import Segment
from engine.reply import Reply
from engine.sampling import Sampling
from engine.source import DirectorySource
from tests.engine.configurations.answers import load_answers
from tests.engine.configurations.cases import CASES
from tests.engine.configurations.checkpoint import write
from tests.engine.reference import feed

SWITCH = 8  # positions
NAMES = ("mixtral-longrope", "glm_moe_dsa-longrope", "qwen3_next-longrope", "mixtral-longrope-beside")
TOKENS = CASES[NAMES[0]].prompt()


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    place = tmp_path_factory.mktemp("longrope")
    write(place, CASES[request.param].config, load_answers()[request.param].shapes)
    with DirectorySource(place) as source, Engine.open(source, Options(weights="native")) as engine:
        yield engine


def test_token_by_token_is_what_a_single_pass_over_all_gives(engine: Engine) -> None:
    assert engine.model.switches_at == SWITCH
    state = engine.model.new_state()
    for count in range(1, len(TOKENS) + 1):
        step = feed(engine, state, TOKENS[count - 1 : count])[-1]
        at_once = feed(engine, engine.model.new_state(), TOKENS[:count])[-1]
        np.testing.assert_array_equal(step, at_once)
        assert state.length == count
        assert state.stretched == (count > SWITCH)


def test_sequences_on_both_sides_share_a_pass(engine: Engine) -> None:
    starts = (3, SWITCH - 1, SWITCH, SWITCH + 2)
    states = [engine.model.new_state() for _ in starts]
    for state, start in zip(states, starts, strict=True):
        feed(engine, state, TOKENS[:start])
    segments = [
        Segment(state, TOKENS[start : start + 2], "all") for state, start in zip(states, starts, strict=True)
    ]
    rows = engine.model.forward(segments, engine.experts)
    for index, start in enumerate(starts):
        alone = feed(engine, engine.model.new_state(), TOKENS[: start + 2])
        np.testing.assert_array_equal(rows[2 * index + 1], alone[-1])


def test_a_state_that_is_cut_back_is_short_again(engine: Engine) -> None:
    state = engine.model.new_state()
    feed(engine, state, TOKENS)
    state.truncate(state.floor(4))
    rest = feed(engine, state, TOKENS[state.length : 6])
    np.testing.assert_array_equal(rest[-1], feed(engine, engine.model.new_state(), TOKENS[:6])[-1])


def test_a_pass_that_fails_leaves_the_state_as_it_was(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = engine.model.new_state()
    feed(engine, state, TOKENS[:SWITCH])
    parts = list(state.parts)
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "run", _broken)
        with pytest.raises(OSError, match="lost"):
            feed(engine, state, TOKENS[SWITCH:])
    assert state.parts == parts
    assert (state.length, state.stretched, state.tokens) == (SWITCH, False, TOKENS[:SWITCH])
    np.testing.assert_array_equal(
        feed(engine, state, TOKENS[SWITCH:]), feed(engine, engine.model.new_state(), TOKENS)[SWITCH:]
    )


def _broken(*_: object) -> None:
    raise OSError("a peer was lost")


def test_what_was_read_again_rests_on_the_pass_that_read_it(engine: Engine) -> None:
    state = engine.model.new_state()
    for begin, end in ((0, 3), (3, SWITCH), (SWITCH, SWITCH + 1), (SWITCH + 1, SWITCH + 3)):
        forward(engine.model, [Segment(state, TOKENS[begin:end])], engine.experts)
    assert [position for position, _ in state.passes] == [0, SWITCH + 1]


def test_a_reply_that_passes_the_switch_is_what_each_whole_text_gives(engine: Engine) -> None:
    reply = Reply(TOKENS[:5], engine.model.new_state(), Sampling(temperature=0.0), frozenset(), max_tokens=8)
    batch = ReplyBatch(engine.model, engine.experts)
    batch.add(reply)
    while len(batch):
        batch.step()
    ids = TOKENS[:5]
    for _ in range(8):
        ids = [*ids, int(feed(engine, engine.model.new_state(), ids)[-1].argmax())]
    assert reply.ids == ids
