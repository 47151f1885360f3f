"""Conversations: turns about mixed topics, some of which only make sense after the turn before."""

from __future__ import annotations

import random
from dataclasses import dataclass

from swarm.demo.corpus.check import is_held_out
from swarm.demo.corpus.grammar import expand
from swarm.demo.corpus.noise import typed
from swarm.demo.corpus.stories import request, story
from swarm.demo.corpus.topics import FOLLOW_UPS, TOPICS, Topic

STORY_SHARE = 0.12
"""Turns that ask for a story. A story is about three times as long as an answer: a quarter of the text."""
_NAMES = tuple(TOPICS)
_WEIGHTS = tuple(2.5 if name in ("unknown", "swarm", "lend_disk", "lend_compute") else 1.0 for name in TOPICS)


@dataclass(frozen=True)
class Turn:
    """What somebody types and what the model answers; `topic` is "story" for a story."""

    topic: str
    question: str
    answer: str


def question(topic: Topic, luck: random.Random) -> str:
    """A phrasing of `topic` for training: never a held-out one, whatever case, punctuation and courtesies."""
    while True:
        phrasing = expand(luck.choice(luck.choice(topic.templates())), luck)
        text = typed(phrasing, luck)
        if not (is_held_out(phrasing) or is_held_out(text)):
            return text


def conversation(luck: random.Random) -> list[Turn]:
    """A piece of a conversation: one turn, or two that belong together."""
    if luck.random() < STORY_SHARE:
        return [_story_turn(luck)]
    if luck.random() < 0.1:
        first, phrasing, second = luck.choice(FOLLOW_UPS)
        follow_up = typed(expand(phrasing, luck), luck, courtesies=False)
        return [_turn(TOPICS[first], luck), Turn(second, follow_up, TOPICS[second].answer)]
    return [_turn(TOPICS[luck.choices(_NAMES, _WEIGHTS)[0]], luck)]


def _turn(topic: Topic, luck: random.Random) -> Turn:
    return Turn(topic.name, question(topic, luck), topic.answer)


def _story_turn(luck: random.Random) -> Turn:
    while True:
        text, hero, name = request(luck)
        if not is_held_out(text):
            told = story(luck, hero, name)
            return Turn("story", typed(text.lower() if luck.random() < 0.3 else text, luck), told)
