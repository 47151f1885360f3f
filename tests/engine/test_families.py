"""Every family against the reference answers. To add a family, add its folders to `FOLDERS`; nothing else
changes.

With `native` weights: logits within the folder's tolerance at every position of the prompt and the
continuation, greedy tokens exact. In every format: the same bits however the prompt is cut, step by step,
and in company. In the rounded formats: the divergence from the reference stays below what the table states.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine.errors import Cancelled, CannotRewind
from engine.experts import Stoppable
from engine.generate import greedy
from engine.models import Segment
from engine.numerics import Weights
from tests.engine.reference import divergence, feed, golden, opened


@dataclass(frozen=True)
class Folder:
    """Bounds on the divergence from the reference, in nats a token, measured and rounded up. `auto` None:
    as q8."""

    q8: float
    q4: float
    auto: float | None = None


FOLDERS = {
    "olmoe": Folder(q8=0.005, q4=0.6),
    "olmoe-gqa-clip": Folder(q8=0.03, q4=0.9),
    "olmoe-f16": Folder(q8=0.06, q4=0.5),
    "olmoe-f32": Folder(q8=0.003, q4=0.25),
    "qwen3_moe": Folder(q8=0.005, q4=0.9),
    "qwen3_moe-mixed": Folder(q8=0.008, q4=0.6),
    "qwen3_moe-yarn": Folder(q8=0.006, q4=1.2),
    "qwen3_moe-sharded": Folder(q8=0.005, q4=0.9),
    "qwen3_moe-int4": Folder(q8=0.005, q4=0.6, auto=0.004),
    "qwen3_5_moe": Folder(q8=0.7, q4=2.5),
    "qwen3_next": Folder(q8=0.6, q4=3.2),
    "qwen2_moe": Folder(q8=0.015, q4=0.7),
    "mixtral": Folder(q8=0.012, q4=1.0),
    "mixtral-window": Folder(q8=0.02, q4=0.9),
    "minimax_m2": Folder(q8=0.012, q4=0.7),
    "minimax_m2-fp8": Folder(q8=0.025, q4=0.7),
    "glm4_moe": Folder(q8=0.1, q4=1.2),
    "glm4_moe-air": Folder(q8=0.008, q4=1.4),
    "deepseek_v4": Folder(q8=0.16, q4=1.4),
    "deepseek_v4-fp4": Folder(q8=0.026, q4=0.75, auto=0.02),
    "glm5_next": Folder(q8=0.9, q4=3.1),
    "glm_moe_dsa": Folder(q8=0.75, q4=2.6),
    "hy_v3": Folder(q8=0.02, q4=1.6),
    "hy_v3-tied": Folder(q8=0.07, q4=1.4),
    "gpt_oss": Folder(q8=0.15, q4=1.2),
    "gpt_oss-mxfp4": Folder(q8=0.05, q4=1.3),
    "deepseek_v3": Folder(q8=0.3, q4=2.6),
    "deepseek_v3-plain": Folder(q8=0.015, q4=1.6),
    "deepseek_v3-fp8": Folder(q8=0.3, q4=1.8),
    "kimi_k2-int4": Folder(q8=0.22, q4=1.8, auto=0.26),
    "inkling": Folder(q8=0.7, q4=3.0),
    "kimi_k3": Folder(q8=0.6, q4=2.9, auto=0.7),
    "kimi_linear": Folder(q8=1.1, q4=3.5),
}
MOST_CUTS = 48  # of longer prompts only so many cuts are tried, spread evenly

folders = pytest.mark.parametrize("name", FOLDERS)


@folders
def test_logits_and_greedy_tokens_are_those_of_the_reference(oracle: Path, name: str) -> None:
    engine, answers = opened(oracle / name), golden(oracle / name)
    logits = feed(engine, engine.model.new_state(), answers.prompt)
    assert logits.shape == answers.logits.shape
    assert np.abs(logits - answers.logits).max() <= answers.atol
    tokens, steps = greedy(engine.model, engine.experts, answers.prompt, len(answers.greedy))
    assert tokens == answers.greedy
    assert np.abs(steps - answers.step_logits).max() <= answers.atol


@pytest.mark.parametrize("weights", ["native", "auto"])
@folders
def test_a_prompt_may_be_cut_anywhere(oracle: Path, name: str, weights: Weights) -> None:
    engine, answers = opened(oracle / name, weights), golden(oracle / name)
    tokens = answers.prompt + answers.greedy
    whole = feed(engine, engine.model.new_state(), tokens)
    growing = engine.model.new_state()
    step = max(1, len(tokens) // MOST_CUTS)
    tried = 0
    for position, token in enumerate(tokens):
        if position % step == 0:
            rest = growing.copy()
            np.testing.assert_array_equal(feed(engine, rest, tokens[position:]), whole[position:])
            tried += 1
        np.testing.assert_array_equal(feed(engine, growing, [token])[0], whole[position])
    assert growing.length == len(tokens)
    assert tried >= min(MOST_CUTS, len(tokens))


@pytest.mark.parametrize("weights", ["native", "q8"])
@folders
def test_a_sequence_in_company_is_as_alone(oracle: Path, name: str, weights: Weights) -> None:
    engine, answers = opened(oracle / name, weights), golden(oracle / name)
    prompts = [answers.prompt, answers.prompt[3:11], answers.greedy, answers.prompt[:1]]
    alone = [feed(engine, engine.model.new_state(), prompt) for prompt in prompts]
    states = [engine.model.new_state() for _ in prompts]
    for state, prompt in zip(states[1:], prompts[1:], strict=True):  # the first joins later than the others
        feed(engine, state, prompt[:-1])
    segments = [
        Segment(state, prompt[state.length :], "all") for state, prompt in zip(states, prompts, strict=True)
    ]
    together = engine.model.forward(segments, engine.experts)
    expected = np.concatenate([alone[0], *(logits[-1:] for logits in alone[1:])])
    np.testing.assert_array_equal(together, expected)


@folders
def test_a_pass_that_is_stopped_leaves_the_states_as_they_were(oracle: Path, name: str) -> None:
    engine, answers = opened(oracle / name), golden(oracle / name)
    tokens, layers = answers.prompt, len(engine.bank.layout.layers)
    whole = feed(engine, engine.model.new_state(), tokens)
    for layer in range(layers):
        calls = iter(range(layers))
        stopped = Stoppable(engine.experts, lambda at=layer, calls=calls: next(calls) == at)
        states = [engine.model.new_state(), engine.model.new_state()]
        feed(engine, states[1], tokens[:5])
        with pytest.raises(Cancelled):
            engine.model.forward([Segment(state, tokens[state.length :], "all") for state in states], stopped)
        assert [state.length for state in states] == [0, 5]
        for state in states:
            rest = tokens[state.length :]
            np.testing.assert_array_equal(feed(engine, state, rest), whole[-len(rest) :])


@folders
def test_a_state_goes_back_or_says_that_it_cannot(oracle: Path, name: str) -> None:
    engine, answers = opened(oracle / name), golden(oracle / name)
    tokens = answers.prompt
    whole = feed(engine, engine.model.new_state(), tokens)
    state = engine.model.new_state()
    feed(engine, state, tokens[:5])
    state.mark()
    feed(engine, state, tokens[5:])
    for length in (len(tokens) - 1, 5, 0):
        floor = state.floor(length)
        if floor != length:
            with pytest.raises(CannotRewind, match=f"go back to {floor} tokens"):
                state.truncate(length)
            assert state.length >= floor
        state.truncate(floor)
        assert state.length == floor
        np.testing.assert_array_equal(feed(engine, state, tokens[floor:]), whole[floor:])
    assert state.floor(5) in (0, 5)


@pytest.mark.parametrize("weights", ["q8", "q4", "auto"])
@folders
def test_rounded_weights_stay_near_the_reference(oracle: Path, name: str, weights: Weights) -> None:
    engine, answers, bounds = opened(oracle / name, weights), golden(oracle / name), FOLDERS[name]
    logits = feed(engine, engine.model.new_state(), answers.prompt)
    bound = {"q8": bounds.q8, "q4": bounds.q4, "auto": bounds.q8 if bounds.auto is None else bounds.auto}[
        weights
    ]
    measured = divergence(answers.logits, logits)
    assert 0 < measured <= bound, f"{name} {weights}: {measured:.2g} nats a token"
