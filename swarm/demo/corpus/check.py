"""The held-out questions, and what counts as the right answer to one."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.demo.corpus import stories
from swarm.demo.corpus.data import table
from swarm.demo.corpus.grammar import normalise
from swarm.demo.corpus.topics import TOPICS


@dataclass(frozen=True)
class Question:
    """A held-out phrasing and the topic whose answer is right; "story" stands for any story."""

    topic: str
    text: str
    before: tuple[str, ...] = ()
    """What was typed earlier in the same conversation."""


def held_out() -> tuple[Question, ...]:
    """The phrasings of each topic that are kept out of the training text; its authors look at what they get."""
    questions = [Question(topic.name, text) for topic in TOPICS.values() for text in topic.held_out]
    questions += [Question("story", text) for text in stories.HELD_OUT]
    return tuple(questions)


def newcomers() -> tuple[Question, ...]:
    """What newcomers ask: kept out of the training text; what models answered was looked at."""
    return _asked("newcomers.toml")


def strangers() -> tuple[Question, ...]:
    """The questions that judge a model: kept out of the training text and asked once the training was over."""
    return _asked("strangers.toml")


def _asked(path: str) -> tuple[Question, ...]:
    rows: tuple[tuple[str, ...], ...] = table(path)["questions"]
    return tuple(Question(row[0], row[-1], row[1:-1]) for row in rows)


_STORY_ENDS = tuple(" ".join(ending.lower().split()[-3:]) for ending in stories.ENDINGS)
_JUDGES = (*held_out(), *newcomers(), *strangers())
_HELD_OUT = frozenset(normalise(q.text) for q in _JUDGES if not q.before)
_HELD_OUT_LATER = frozenset(normalise(q.text) for q in _JUDGES if q.before)


def is_held_out(text: str, later: bool = False) -> bool:
    """Whether `text` is a held-out phrasing, apart from case and punctuation; `later`: also after another turn."""
    return normalise(text) in _HELD_OUT or (later and normalise(text) in _HELD_OUT_LATER)


def is_right(topic: str, answer: str, question: str = "") -> bool:
    """Whether `answer` has every key fact of `topic`, and of no other topic besides.

    A story is right when it tells of the hero and the name that `question` asks for, and comes to its end.
    """
    text = " ".join(answer.lower().split())
    if topic == "story":
        asked = normalise(question).split()
        names = (name.lower() for name in stories.HER + stories.HIS)
        wanted = [word for word in (*stories.HEROES, *names) if word in asked]
        told = normalise(answer).split()
        return text.endswith(_STORY_ENDS) and len(told) >= 30 and all(word in told for word in wanted)
    others = (other for other in TOPICS.values() if other.name != topic)
    return _has(text, TOPICS[topic].facts) and not any(_has(text, other.facts) for other in others)


def _has(text: str, facts: tuple[str, ...]) -> bool:
    return all(fact in text for fact in facts)
