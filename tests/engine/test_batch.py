"""Replies made together: each as if alone, whoever joins, leaves, fails or is cancelled."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from engine import batch as batch_module
from engine.arrays import F32, I32
from engine.batch import ReplyBatch
from engine.cache import State
from engine.doubts import Doubts
from engine.engine import Engine
from engine.errors import Cancelled, ContextFull, EngineError, ExpertsUnavailable, NotComputed, SettingsError
from engine.experts import Experts, Stoppable
from engine.generate import StopTexts, generate, greedy, logits
from engine.models import Model, Segment
from engine.reply import Done, Prefilled, Reply, Token
from engine.sampling import Sampling
from tests.engine.reference import golden, opened


@pytest.fixture
def engine(oracle: Path) -> Engine:
    return opened(oracle / "olmoe", "q8")


@pytest.fixture
def prompt(oracle: Path) -> list[int]:
    return golden(oracle / "olmoe").prompt


def reply(engine: Engine, ids: list[int], seed: int = 0, count: int = 8, temperature: float = 1.0) -> Reply:
    return Reply(
        list(ids), engine.model.new_state(), Sampling(temperature=temperature, seed=seed), max_tokens=count
    )


def alone(engine: Engine, ids: list[int], seed: int, count: int = 8) -> list[int]:
    made = reply(engine, ids, seed, count)
    list(generate(engine.model, engine.experts, made))
    return made.generated


def test_greedy_replies_are_the_reference(oracle: Path) -> None:
    engine, answers = opened(oracle / "olmoe"), golden(oracle / "olmoe")
    made = reply(engine, answers.prompt, count=24, temperature=0.0)
    events = list(generate(engine.model, engine.experts, made))
    assert [event.token for event in events if isinstance(event, Token)] == answers.greedy
    assert isinstance(events[0], Prefilled)
    assert isinstance(events[-1], Done)
    assert (events[-1].reason, made.finished) == ("length", "length")
    assert (made.stats.prompt_tokens, made.stats.reply_tokens) == (24, 24)
    np.testing.assert_array_equal(
        logits(engine.model, engine.experts, answers.prompt)[-1],
        greedy(engine.model, engine.experts, answers.prompt, 1)[1][0],
    )


def test_replies_in_company_are_as_alone(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "PREFILL_ROWS_SHARED", 5)
    monkeypatch.setattr(batch_module, "PREFILL_ROWS", 7)
    prompts = [prompt, prompt[:3], prompt[5:], prompt[::-1]]
    replies = [reply(engine, ids, seed, 4 + seed) for seed, ids in enumerate(prompts)]
    company = ReplyBatch(engine.model, engine.experts)
    company.add(replies[0])
    waiting = replies[1:]
    steps = 0
    while len(company):
        company.step()
        steps += 1
        if waiting and steps % 2 == 0:
            company.add(waiting.pop(0))
    for seed, (ids, made) in enumerate(zip(prompts, replies, strict=True)):
        assert made.finished == "length"
        assert made.generated == alone(engine, ids, seed, 4 + seed)


def test_a_long_prompt_does_not_hold_up_the_others(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "PREFILL_ROWS_SHARED", 4)
    company = ReplyBatch(engine.model, engine.experts)
    speaking = reply(engine, prompt[:2], count=30)
    company.add(speaking)
    company.step()
    long = reply(engine, prompt)
    company.add(long)
    while long.waits_for_prompt:
        before, read = len(speaking.generated), long.state.length
        events = company.step()
        assert len(speaking.generated) == before + 1
        assert long.state.length <= read + 4
        assert any(isinstance(event, Prefilled) and event.reply is long for event in events)
    assert len(long.generated) == 1


def test_prompts_that_are_many_are_read_together(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "PREFILL_ROWS_SHARED", 4)
    monkeypatch.setattr(batch_module, "MOST_PREFILL_ROWS_SHARED", 14)

    def rows_read(speaking: int, joining: int) -> int:
        company = ReplyBatch(engine.model, engine.experts)
        for _ in range(speaking):
            company.add(reply(engine, prompt[:2], count=30))
        company.step()
        prompts = [reply(engine, prompt) for _ in range(joining)]
        for one in prompts:
            company.add(one)
        company.step()
        return sum(one.state.length for one in prompts)

    assert rows_read(1, 1) == 4
    assert rows_read(1, 2) == 8
    assert rows_read(2, 3) == 4
    assert rows_read(1, 5) == 14


def test_one_that_leaves_does_not_change_the_others(engine: Engine, prompt: list[int]) -> None:
    staying, leaving = reply(engine, prompt, 1), reply(engine, prompt[4:], 2)
    company = ReplyBatch(engine.model, engine.experts)
    company.add(staying)
    company.add(leaving)
    for _ in range(3):
        company.step()
    company.remove(leaving)
    assert leaving.finished == "cancelled"
    while len(company):
        company.step()
    assert staying.generated == alone(engine, prompt, 1)
    assert leaving.generated == alone(engine, prompt[4:], 2, 3)
    assert leaving.state.length == len(leaving.ids) - 1  # good for going on from


class Failing:
    """Experts that are away for a while."""

    looks_ahead = False
    far = False
    doubts = Doubts()

    def __init__(self, experts: Experts) -> None:
        self.experts = experts
        self.away = False

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        return work()

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        if self.away and layer == 2:
            raise ExpertsUnavailable("nobody has expert 5 of layer 2")
        return self.experts.begin(layer, rows, ids, weights)

    def local_bank(self) -> None:
        """See `engine.experts.Experts`."""

    def prefetch(self, layer: int, ids: I32) -> None:
        raise AssertionError("nobody looks ahead here")


class Damaged:
    """A model that computes no numbers for the sequences it is told of."""

    def __init__(self, engine: Engine, wrong: float) -> None:
        self._model, self._wrong = engine.model, wrong
        self.of: list[State] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, segments: Sequence[Segment], experts: Experts) -> F32:
        out = self._model.forward(segments, experts).copy()
        for row, segment in enumerate(segments):  # one row a segment
            if segment.state in self.of:
                out[row] = self._wrong
        return out


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("first", [True, False])
def test_a_reply_for_which_no_number_was_computed_leaves_and_the_others_go_on(
    engine: Engine, prompt: list[int], first: bool, temperature: float, wrong: float
) -> None:
    model = Damaged(engine, wrong)
    company = ReplyBatch(cast(Model, model), engine.experts)
    one, two = reply(engine, prompt, 1), reply(engine, prompt, 2, temperature=temperature)
    for made in (two, one) if first else (one, two):
        company.add(made)
    company.step()
    model.of.append(two.state)
    with pytest.raises(NotComputed, match="its weights are damaged") as error:
        company.step()
    assert error.value.reply is two
    while len(company):
        company.step()
    assert one.generated == alone(engine, prompt, 1)


def test_a_step_that_fails_can_be_tried_again(engine: Engine, prompt: list[int]) -> None:
    experts = Failing(engine.experts)
    company = ReplyBatch(engine.model, experts)
    one, two = reply(engine, prompt, 1), reply(engine, prompt[4:], 2)
    company.add(one)
    company.step()
    company.add(two)
    experts.away = True
    for _ in range(2):
        with pytest.raises(ExpertsUnavailable):
            company.step()
    experts.away = False
    while len(company):
        company.step()
    assert one.generated == alone(engine, prompt, 1)
    assert two.generated == alone(engine, prompt[4:], 2)


def test_a_step_that_is_stopped_wherever_it_can_be_begins_anew(engine: Engine, prompt: list[int]) -> None:
    asked: list[int] = []  # how often each pass asks whether to stop

    def stops(at: int) -> bool:
        asked[-1] += 1
        return sum(asked) == at + 1

    def started(at: int) -> tuple[ReplyBatch, Reply]:
        asked[:] = [0]
        company, made = (
            ReplyBatch(engine.model, Stoppable(engine.experts, lambda: stops(at))),
            reply(engine, prompt, 3),
        )
        company.add(made)
        company.step()
        asked.append(0)
        return company, made

    company, _ = started(-1)
    company.step()
    first, second = asked
    assert first == len(engine.bank.layout.layers)
    assert second >= 1
    for at in range(first, first + second):
        company, made = started(at)
        with pytest.raises(Cancelled):
            company.step()
        while len(company):
            company.step()
        assert made.generated == alone(engine, prompt, 3)


def test_stop_tokens_end_a_reply_and_are_not_part_of_it(engine: Engine, prompt: list[int]) -> None:
    tokens = alone(engine, prompt, 5)
    made = reply(engine, prompt, 5)
    made.stop_ids = frozenset({tokens[3]})
    events = list(generate(engine.model, engine.experts, made))
    assert made.finished == "stop"
    assert made.generated == tokens[: tokens.index(tokens[3])]
    assert isinstance(events[-1], Done)


def test_the_context_ends_a_reply_and_refuses_a_prompt(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model, "context_length", 26)
    made = reply(engine, prompt, count=99)
    list(generate(engine.model, engine.experts, made))
    assert made.finished == "context"
    assert len(made.ids) == 27  # the last token needs no room: it is never fed
    with pytest.raises(ContextFull, match="27 tokens"):
        list(generate(engine.model, engine.experts, reply(engine, prompt + prompt[:3])))


def test_probabilities_are_reported_on_request(engine: Engine, prompt: list[int]) -> None:
    made = reply(engine, prompt, count=3, temperature=0.0)
    made.logprobs = 2
    tokens = [event for event in generate(engine.model, engine.experts, made) if isinstance(event, Token)]
    for event in tokens:
        assert event.alternatives[0][0] == event.token
        assert event.alternatives[0][1] == event.logprob
        assert event.logprob is not None
        assert event.logprob <= 0
        assert len(event.alternatives) == 2


def test_what_cannot_be_replied_to(engine: Engine, prompt: list[int]) -> None:
    state = engine.model.new_state()
    with pytest.raises(SettingsError, match="prompt is empty"):
        Reply([], state)
    with pytest.raises(SettingsError, match="max_tokens"):
        Reply([1], state, max_tokens=0)
    made = reply(engine, prompt, count=1)
    list(generate(engine.model, engine.experts, made))
    with pytest.raises(SettingsError, match="already holds"):
        Reply(prompt, made.state)
    with pytest.raises(EngineError, match="no token 512"):
        list(generate(engine.model, engine.experts, reply(engine, [1, 512])))


def test_cancelling_between_steps_keeps_what_was_made(engine: Engine, prompt: list[int]) -> None:
    made = reply(engine, prompt, 1)
    list(generate(engine.model, engine.experts, made, lambda: len(made.generated) == 3))
    assert made.finished == "cancelled"
    assert made.generated == alone(engine, prompt, 1, 3)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        (["END"], ["a", "E", "N", "x", "END", "more"], "aENx", "END"),
        (["END"], ["aEN"], "aEN", None),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["xyz", "y"], ["wx", "yz"], "w", "xyz"),
        (["xyz", "y"], ["w", "y", "x"], "w", "y"),
        ([], ["a"], "a", None),
        (["", "b"], ["ab"], "a", "b"),
    ],
)
def test_stop_texts(stops: list[str], pieces: list[str], shown: str, found: str | None) -> None:
    watch = StopTexts(stops)
    text = "".join(watch.push(piece) for piece in pieces) + watch.end()
    assert (text, watch.found) == (shown, found)
