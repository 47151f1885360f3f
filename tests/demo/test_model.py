"""The shipped demo model: small, complete, and right about Swarm when the engine runs it in q8."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.chat import ChatSettings, Conversation, Finished
from engine.engine import Engine, Options
from engine.sampling import Sampling
from engine.source import DirectorySource
from swarm.demo.chat_format import CHAT_TEMPLATE, prompt
from swarm.demo.corpus import Question, held_out, is_right, newcomers, strangers
from swarm.demo.corpus.topics import TOPICS

MODEL = Path(__file__).parents[2] / "swarm" / "demo" / "model"
GREEDY = ChatSettings(sampling=Sampling(temperature=0.0), max_tokens=200)

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="the demo model is not in this tree")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.open(DirectorySource(MODEL), Options(weights="q8")) as opened:
        yield opened


def ask(conversation: Conversation, question: str) -> str:
    last = list(conversation.say(question, GREEDY))[-1]
    assert isinstance(last, Finished)
    assert last.reason == "stop"
    return last.text


def test_it_is_small_and_says_how_it_was_made() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 16_000_000
    made = json.loads((MODEL / "training.json").read_text(encoding="utf-8"))
    assert made["tokens"] == 2048 * made["step"] > 0
    assert made["right"] / made["held_out"] >= 0.9


def test_its_template_writes_what_it_was_trained_on(engine: Engine) -> None:
    settings = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["chat_template"] == CHAT_TEMPLATE
    made = engine.template.prompt([{"role": "user", "content": "What is a tracker?"}])
    assert made.text == prompt("What is a tracker?")


def test_it_keeps_to_the_subject_over_several_turns(engine: Engine) -> None:
    conversation = Conversation(engine)
    asked = {"tracker": "What is a tracker?", "lend_disk": "How do I lend disk?", "thanks": "Thank you!"}
    for topic, question in asked.items():
        assert is_right(topic, ask(conversation, question))


@pytest.mark.parametrize(
    ("topic", "question"),
    [
        ("swarm", "What is Swarm?"),
        ("swarm", "what is swarm"),
        ("tracker", "What is a tracker?"),
        ("who_are_you", "who are you"),
        ("safe", "is it safe"),
        ("serve", "how do i share my model"),
        ("unknown", "What is the capital of France?"),
        ("story", "tell me a story"),
    ],
)
def test_it_answers_what_is_asked_first(engine: Engine, topic: str, question: str) -> None:
    assert is_right(topic, ask(Conversation(engine), question), question)


def share_right(engine: Engine, questions: tuple[Question, ...]) -> float:
    right = 0
    for question in questions:
        conversation = Conversation(engine)
        for earlier in question.before:
            ask(conversation, earlier)
        right += is_right(question.topic, ask(conversation, question.text), question.text)
    return right / len(questions)


def about_swarm() -> tuple[Question, ...]:
    """Held-out phrasings about what Swarm is, how to do things, whom to trust, and models."""
    themes = {"words", "how_to", "trust", "models"}
    return tuple(
        question
        for question in held_out()
        if question.topic in TOPICS and TOPICS[question.topic].theme in themes
    )


@pytest.mark.slow
def test_nearly_every_held_out_question_about_swarm_gets_the_right_answer(engine: Engine) -> None:
    questions = about_swarm()
    assert len(questions) >= 100
    assert share_right(engine, questions) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("questions", "least"), [(held_out, 0.94), (newcomers, 0.9), (strangers, 0.83)])
def test_most_held_out_questions_get_the_right_answer(
    engine: Engine, questions: Callable[[], tuple[Question, ...]], least: float
) -> None:
    assert share_right(engine, questions()) >= least
