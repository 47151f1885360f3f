"""Replies that rest on answers found wrong later: taken back as far as they are wrong, and said again."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import batch as batch_module
from engine import generate as generate_module
from engine.batch import ReplyBatch
from engine.cache import State
from engine.chat import ChatSettings, Conversation, Finished, Restarted, Text
from engine.doubts import MOST_REDOS, Doubts, Flaw
from engine.engine import Engine
from engine.errors import FalsifiedTooOften
from engine.generate import continued, generate, greedy, logits
from engine.reply import BatchEvent, Done, Reply, Retracted, Token
from engine.sampling import Sampling
from tests.engine.liars import LIE, Liar
from tests.engine.reference import golden, opened


@pytest.fixture(params=["olmoe", "qwen3_next"])
def engine(oracle: Path, request: pytest.FixtureRequest) -> Engine:
    """A model that can be cut back anywhere, and one with running sums that cannot."""
    return opened(oracle / request.param, "q8")


@pytest.fixture
def prompt(oracle: Path) -> list[int]:
    return golden(oracle / "olmoe").prompt


def reply(engine: Engine, ids: list[int], seed: int = 0, count: int = 12, temperature: float = 1.0) -> Reply:
    return Reply(
        list(ids), engine.model.new_state(), Sampling(temperature=temperature, seed=seed), max_tokens=count
    )


def alone(
    engine: Engine, ids: list[int], seed: int = 0, count: int = 12, temperature: float = 1.0
) -> list[int]:
    made = reply(engine, ids, seed, count, temperature)
    list(generate(engine.model, engine.experts, made))
    return made.generated


def told(events: Iterable[BatchEvent], of: Reply) -> list[int]:
    """The tokens that stand after all that was said and taken back; ends with one Done."""
    tokens: list[int] = []
    done = 0
    for event in events:
        if event.reply is not of:
            continue
        match event:
            case Token(_, token):
                tokens.append(token)
            case Retracted(_, kept, reason):
                assert reason == LIE
                assert kept < len(tokens)
                del tokens[kept:]
            case Done():
                done += 1
            case _:
                pass
    assert done == 1
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("lies", "found"), [([1], 4), ([3, 4], 5), ([3, 4, 5], 5), ([2, 7], 12), ([9], 10)])
def test_a_lie_found_in_mid_reply_leaves_nothing_behind(
    engine: Engine, prompt: list[int], temperature: float, lies: list[int], found: int
) -> None:
    liar = Liar(engine.experts, lies, [found])
    made = reply(engine, prompt, 5, temperature=temperature)
    events = list(generate(engine.model, liar, made))
    right = alone(engine, prompt, 5, temperature=temperature)
    assert told(events, made) == made.generated == right
    assert made.stats.reply_tokens == 12
    assert made.sampler.drawn == 12


def test_a_lie_that_changed_no_token_is_not_mentioned(engine: Engine, prompt: list[int]) -> None:
    liar = Liar(engine.experts, [2, 3, 4], [7], size=-1.0)
    made = reply(engine, prompt, 5)
    events = list(generate(engine.model, liar, made))
    assert not any(isinstance(event, Retracted) for event in events)
    assert told(events, made) == alone(engine, prompt, 5)


def test_a_state_is_read_again_many_tokens_at_a_time(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "REDO_ROWS", 8)
    liar = Liar(engine.experts, [2], [20], size=-1.0)
    made = reply(engine, prompt, 5, count=24)
    list(generate(engine.model, liar, made))
    assert made.generated == alone(engine, prompt, 5, count=24)
    assert (
        liar.doubts.current < 24 + 1 + 4 + 2
    )  # tokens; the pass that came to nothing; 19 tokens; what is left


def test_every_sequence_of_a_batch_is_put_right(engine: Engine, prompt: list[int]) -> None:
    liar = Liar(engine.experts, [2, 3, 4], [6])
    company = ReplyBatch(engine.model, liar)
    prompts = [prompt, prompt[:3], prompt[5:]]
    replies = [reply(engine, ids, seed, 6 + 3 * seed) for seed, ids in enumerate(prompts)]
    waiting = list(replies)
    events = []
    while len(company) or waiting:
        if waiting:
            company.add(waiting.pop(0))
        events += company.step()
    for seed, (ids, made) in enumerate(zip(prompts, replies, strict=True)):
        assert told(events, made) == made.generated == alone(engine, ids, seed, 6 + 3 * seed)


def test_a_reply_is_done_only_when_its_passes_are_checked(engine: Engine, prompt: list[int]) -> None:
    right = alone(engine, prompt, 5)
    liar = Liar(engine.experts, [4, 9])
    company, made = ReplyBatch(engine.model, liar), reply(engine, prompt, 5)
    company.add(made)
    liar.doubts.open(12)
    events: list[BatchEvent] = []
    while not made.is_complete:
        events += company.step()
    assert company.step() == []
    assert made.finished is None
    liar.convict()
    liar.doubts.close(12)
    while len(company):
        events += company.step()
    assert told(events, made) == right
    assert made.finished == "length"


def test_what_is_checked_for_ever_is_not_waited_for_for_ever(engine: Engine, prompt: list[int]) -> None:
    liar = Liar(engine.experts, [])
    now = iter(range(10_000))
    company = ReplyBatch(engine.model, liar, lambda: float(next(now)))
    made = reply(engine, prompt)
    company.add(made)
    liar.doubts.open(1)
    while len(company):
        company.step()
    assert made.finished == "length"


def test_an_end_that_was_due_to_a_lie_is_none(engine: Engine, prompt: list[int]) -> None:
    right = alone(engine, prompt, 5)
    lied = reply(engine, prompt, 5)
    list(generate(engine.model, Liar(engine.experts, range(3, 20)), lied))
    ends = {lied.generated[4]} - set(right)
    assert ends
    liar = Liar(engine.experts, range(3, 20))
    company, made = ReplyBatch(engine.model, liar), reply(engine, prompt, 5)
    made.stop_ids = frozenset(ends)
    company.add(made)
    liar.doubts.open(1)
    events: list[BatchEvent] = []
    while not made.is_complete:
        events += company.step()
    assert made.ending == "stop"
    liar.lies &= set(range(liar.doubts.current + 1))
    liar.convict()
    liar.doubts.close(1)
    while len(company):
        events += company.step()
    assert told(events, made) == right


def test_an_end_that_was_right_is_found_again(engine: Engine, prompt: list[int]) -> None:
    right = alone(engine, prompt, 5)
    liar = Liar(engine.experts, [2], size=-1.0)
    company, made = ReplyBatch(engine.model, liar), reply(engine, prompt, 5)
    made.stop_ids = frozenset({right[6]})
    company.add(made)
    liar.doubts.open(1)
    while not made.is_complete:
        company.step()
    liar.convict()
    liar.doubts.close(1)
    while len(company):
        company.step()
    assert made.generated == right[: right.index(right[6])]
    assert made.finished == "stop"


def test_probabilities_are_said_again_where_they_differ(engine: Engine, prompt: list[int]) -> None:
    plain = reply(engine, prompt, 5)
    plain.logprobs = 2
    right = [event for event in generate(engine.model, engine.experts, plain) if isinstance(event, Token)]
    liar = Liar(engine.experts, [4], [9], size=-1.01)
    made = reply(engine, prompt, 5)
    made.logprobs = 2
    said: list[Token] = []
    for event in generate(engine.model, liar, made):
        if isinstance(event, Token):
            said.append(event)
        elif isinstance(event, Retracted):
            del said[event.kept :]
    assert [(one.token, one.logprob, one.alternatives) for one in said] == [
        (one.token, one.logprob, one.alternatives) for one in right
    ]


def test_a_reply_is_given_up_when_it_is_falsified_again_and_again(engine: Engine, prompt: list[int]) -> None:
    liar = Liar(engine.experts, [])
    company = ReplyBatch(engine.model, liar)
    company.add(reply(engine, prompt))
    for _ in range(MOST_REDOS + 1):
        company.step()
        liar.doubts.withdraw(liar.doubts.current, liar.doubts.current, LIE)
    with pytest.raises(FalsifiedTooOften, match=LIE):
        company.step()
    assert len(company) == 0


def test_bare_tokens_and_logits_are_computed_again(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, rows = greedy(engine.model, engine.experts, prompt, 6)
    again, others = greedy(engine.model, Liar(engine.experts, [2, 3], [5]), prompt, 6)
    assert again == tokens
    np.testing.assert_array_equal(others, rows)
    right = logits(engine.model, engine.experts, prompt)
    monkeypatch.setattr(generate_module, "LOGITS_ROWS", 7)
    np.testing.assert_array_equal(logits(engine.model, Liar(engine.experts, [1], [2]), prompt), right)
    # Found out when all rows are there and some tokens too: both are made again.
    rows, again = continued(engine.model, Liar(engine.experts, [1], [2 + len(prompt) // 7 + 3]), prompt, 6)
    np.testing.assert_array_equal(rows, right)
    assert again == tokens


def test_what_is_falsified_whenever_it_is_computed_is_given_up(engine: Engine, prompt: list[int]) -> None:
    liar = Liar(engine.experts, range(1000))
    liar.convict()
    with pytest.raises(FalsifiedTooOften, match=LIE):
        greedy(engine.model, liar, prompt, 2)


def test_flaws_are_found_by_the_passes_a_state_notes() -> None:
    doubts, state = Doubts(), State([])
    state.passes, state.length = [(0, 2), (10, 5), (11, 6), (12, 9)], 13
    assert doubts.flaw(state) is None
    doubts.withdraw(7, 8, "nobody")
    assert doubts.flaw(state) is None
    doubts.withdraw(6, 20, "late")
    assert doubts.flaw(state) == Flaw(11, "late")
    doubts.withdraw(3, 5, "early")
    assert doubts.flaw(state) == Flaw(10, "early")
    twin = state.copy()
    state.truncate(10)
    assert state.passes == [(0, 2)]
    assert doubts.flaw(state) is None
    assert doubts.flaw(twin) == Flaw(10, "early")


def test_checks_are_waited_for_up_to_a_pass() -> None:
    doubts = Doubts()
    assert doubts.settled(9)
    doubts.open(5)
    doubts.open(5)
    assert doubts.settled(4)
    assert not doubts.wait(5, 0.0)
    doubts.close(5)
    assert not doubts.settled(6)
    doubts.close(5)
    assert doubts.wait(6, 0.0)


class Shown:
    """What a user sees of a reply."""

    def __init__(self, events: Iterator[object]) -> None:
        self.text, self.thinking, self.restarts = "", "", 0
        for event in events:
            match event:
                case Text(text, aside):
                    self.thinking += text if aside else ""
                    self.text += "" if aside else text
                case Restarted(reason, text, thinking):
                    assert reason == LIE
                    assert self.text.startswith(text)
                    assert self.thinking.startswith(thinking)
                    self.text, self.thinking, self.restarts = text, thinking, self.restarts + 1
                case Finished():
                    assert (event.text, event.thinking) == (self.text, self.thinking)
                    self.finished = event
                case _:
                    pass


def test_a_conversation_says_what_is_right_instead(oracle: Path) -> None:
    engine = opened(oracle / "olmoe", "q8")
    settings = ChatSettings(Sampling(temperature=0.8, seed=11), max_tokens=12)
    local = Conversation(engine)
    first, second = (Shown(local.say(text, settings)) for text in ("Hello!", "Go on."))
    engine.experts = liar = Liar(engine.experts, [4, 5], [8])
    talk = Conversation(engine)
    shown = Shown(talk.say("Hello!", settings))
    assert shown.restarts == 1
    assert shown.text == first.text
    assert talk.messages == local.messages[:2]
    # Found out between two replies: what the state holds is not used again.
    liar.lies = {1}
    liar.convict()
    after = Shown(talk.say("Go on.", settings))
    assert after.text == second.text
    assert after.restarts == 0
    assert after.finished.stats.cached_tokens == 0 < second.finished.stats.cached_tokens


def test_a_stop_text_that_was_due_to_a_lie_ends_nothing(oracle: Path) -> None:
    engine = opened(oracle / "olmoe", "q8")
    plain = ChatSettings(Sampling(temperature=0.8, seed=11), max_tokens=12)
    right = Shown(Conversation(engine).say("Hello!", plain))
    honest = engine.experts
    engine.experts = Liar(honest, range(3, 30))
    lied = Shown(Conversation(engine).say("Hello!", plain)).text
    stop = next(lied[at : at + 2] for at in range(4, 20) if lied[at : at + 2] not in right.text)
    engine.experts = liar = Liar(honest, range(3, 30))
    liar.wait_for_it()
    wanted = ChatSettings(plain.sampling, max_tokens=12, stop=[stop])
    shown = Shown(Conversation(engine).say("Hello!", wanted))
    assert shown.text == right.text
    assert shown.finished.reason == "length"
