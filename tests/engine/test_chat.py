"""Conversations: nothing computed twice, thoughts told apart, cancelled and failed replies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.chat import ChatSettings, Conversation, Finished, Progress, Text
from engine.engine import Engine, Options, stop_ids
from engine.errors import ContextFull, TemplateError, TokenizerError, UnknownFamily
from engine.sampling import Sampling
from engine.source import DirectorySource
from engine.thinking import Channels, Tags
from tests.engine.reference import opened


@pytest.fixture
def engine(oracle: Path) -> Engine:
    return opened(oracle / "olmoe", "q8")


SETTINGS = ChatSettings(Sampling(temperature=0.8, seed=11), max_tokens=12)


def said(events: Iterator[Any]) -> tuple[str, Finished]:
    collected = list(events)
    finished = collected[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in collected if isinstance(event, Text) and not event.thinking)
    assert text == finished.text
    return text, finished


def test_a_reply_streams_and_joins_the_conversation(engine: Engine) -> None:
    conversation = Conversation(engine, system="Be brief.")
    events = list(conversation.say("Hello!", SETTINGS))
    assert isinstance(events[0], Progress)
    assert events[0].done == events[0].total
    text, finished = said(iter(events))
    assert finished.reason == "length"
    assert finished.stats.reply_tokens == 12
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    assert conversation.messages[-1]["content"] == text


def test_what_was_read_is_not_read_again_and_changes_nothing(engine: Engine) -> None:
    talk = Conversation(engine)
    said(talk.say("Hello! Tell me of the sea.", SETTINGS))
    before = talk.tokens
    text, finished = said(talk.say("And of the wind?", SETTINGS))
    assert finished.stats.cached_tokens >= 20
    assert finished.stats.cached_tokens <= before
    fresh = Conversation(engine)
    fresh.messages = [dict(message) for message in talk.messages[:-1]]
    again, anew = said(fresh.reply(SETTINGS))
    assert again == text
    assert anew.stats.cached_tokens == 0
    assert anew.stats.prompt_tokens == finished.stats.prompt_tokens


def test_an_edited_conversation_is_read_from_where_it_differs(engine: Engine) -> None:
    talk = Conversation(engine)
    said(talk.say("Hello! Tell me of the sea.", SETTINGS))
    talk.messages = [{"role": "user", "content": "Hello! Tell me of the wind."}]
    text, finished = said(talk.reply(SETTINGS))
    assert 10 < finished.stats.cached_tokens < finished.stats.prompt_tokens - 1
    fresh = Conversation(engine)
    assert said(fresh.say("Hello! Tell me of the wind.", SETTINGS))[0] == text
    talk.clear()
    assert talk.messages == []


def test_a_cancelled_reply_is_kept_as_far_as_it_was_shown(engine: Engine) -> None:
    talk = Conversation(engine)
    count = 0

    def enough() -> bool:
        nonlocal count
        count += 1
        return count > 5

    text, finished = said(talk.say("Hello!", SETTINGS, enough))
    assert finished.reason == "cancelled"
    assert finished.stats.reply_tokens == 5
    assert talk.messages[-1] == {"role": "assistant", "content": text}
    said(talk.say("Go on.", SETTINGS))


def test_a_failed_reply_takes_the_question_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(engine)
    monkeypatch.setattr(engine.model, "context_length", 30)
    with pytest.raises(ContextFull, match="context 30"):
        list(talk.say("Tell me everything there is to know about the sea, at length.", SETTINGS))
    assert talk.messages == []
    assert said(talk.say("Hi", SETTINGS))[1].reason == "context"


def test_stop_texts_end_a_reply_before_them(engine: Engine) -> None:
    whole = said(Conversation(engine).say("Hello!", SETTINGS))[0]
    stop = whole[4:6]
    text, finished = said(
        Conversation(engine).say("Hello!", ChatSettings(SETTINGS.sampling, max_tokens=12, stop=[stop]))
    )
    assert text == whole[: whole.index(stop)]
    assert finished.reason == "stop"


def test_every_end_token_counts(engine: Engine) -> None:
    assert engine.stop_ids == {0, 2}
    config = {"eos_token_id": 7, "text_config": {"eos_token_id": [8]}}
    assert stop_ids(config, {"eos_token_id": [1, 9]}, None) == {1, 7, 8, 9}
    assert stop_ids({"eos_token_id": None}, {"eos_token_id": True}, None) == frozenset()


def test_a_model_without_words_still_computes(oracle: Path) -> None:
    engine = opened(oracle / "olmoe-f32")
    assert not engine.can_chat
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        _ = engine.tokenizer
    with pytest.raises(TemplateError, match="no chat template"):
        _ = engine.template


def test_an_unknown_family_is_refused_with_the_list_of_known_ones(tmp_path: Path, oracle: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((oracle / "olmoe-f32" / "model.safetensors").read_bytes())
    for config, says in (
        ('{"model_type": "llama"}', "'llama' is not known; known are .*olmoe.*qwen3_moe"),
        ("{}", "names no model_type"),
    ):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(UnknownFamily, match=says):
            Engine.open(DirectorySource(tmp_path), Options())


class Words:
    """A tokenizer of whole pieces: token n is `pieces[n]`."""

    def __init__(self, pieces: list[str], special: set[str]) -> None:
        self.pieces, self.special = pieces, special

    def id_of(self, text: str) -> int | None:
        return self.pieces.index(text) if text in self.pieces else None

    def is_special(self, ident: int) -> bool:
        return self.pieces[ident] in self.special


def sorted_pieces(sorter: Any, pieces: list[str], special: set[str]) -> tuple[str, str]:
    found = {False: "", True: ""}
    for ident, piece in enumerate(pieces):
        for text, aside in sorter.push(ident, "" if piece in special else piece):
            found[aside] += text
    for text, aside in sorter.end():
        found[aside] += text
    return found[True], found[False]


@pytest.mark.parametrize("special", [set(), {"<think>", "</think>"}])
@pytest.mark.parametrize(
    ("aside", "pieces", "thought", "answer"),
    [
        (False, ["<think>", "\n", "hm", "\n", "</think>", "\n\n", "Yes", "."], "hm\n", "Yes."),
        (True, ["\n", "hm", "</think>", "Yes"], "hm", "Yes"),
        (False, ["Yes", " <think>", "no"], "", "Yes <think>no"),
        (False, ["  ", "Yes"], "", "  Yes"),
        (False, ["<think>", "never ends"], "never ends", ""),
        (False, [" "], "", " "),
    ],
)
def test_thoughts_between_tags(
    special: set[str], aside: bool, pieces: list[str], thought: str, answer: str
) -> None:
    sorter = Tags(Words(pieces, special), aside)  # type: ignore[arg-type]
    assert sorted_pieces(sorter, pieces, special) == (thought, answer)


def test_tags_may_come_in_pieces() -> None:
    pieces = ["<th", "ink>", "a<", "b", "</", "think", ">", "\n", "c"]
    assert sorted_pieces(Tags(Words(pieces, set()), False), pieces, set()) == ("a<b", "c")  # type: ignore[arg-type]


def test_channels() -> None:
    marks = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>"}
    pieces = ["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>", "<|start|>", "assistant"]
    words = Words([*pieces, "final"], marks)
    sorter = Channels(words)  # type: ignore[arg-type]
    spoken = [*pieces, "<|channel|>", "final", "<|message|>", "Yes"]
    found = {False: "", True: ""}
    for piece in spoken:
        ident = words.id_of(piece)
        for text, aside in sorter.push(-1 if ident is None else ident, "" if piece in marks else piece):
            found[aside] += text
    assert found == {True: "hm", False: "Yes"}
