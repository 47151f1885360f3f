"""Conversations: turns about mixed topics, some of which only make sense after the turn before."""

from __future__ import annotations

import random

from swarm.demo.corpus.check import is_held_out
from swarm.demo.corpus.fillers import filled
from swarm.demo.corpus.grammar import expand
from swarm.demo.corpus.noise import typed
from swarm.demo.corpus.sayings import echo, introduction
from swarm.demo.corpus.stories import MORE, request, story
from swarm.demo.corpus.topics import FOLLOW_UPS, TOPICS, Topic
from swarm.demo.corpus.turns import Turn
from swarm.demo.corpus.wording import reworded

STORY_SHARE = 0.11
"""Turns that ask for a story. A story is about three times as long as an answer: a quarter of the text."""
ECHO_SHARE = 0.04
NAME_SHARE = 0.03
FOLLOW_UP_SHARE = 0.13
_OFTEN = {
    "unknown": 9.0,
    "swarm": 3.0,
    "lend_disk": 2.0,
    "lend_compute": 2.0,
    "confused": 2.0,
    "acknowledged": 2.0,
}
_SHORT = {name for name, topic in TOPICS.items() if topic.theme == "small_talk" and name != "unknown"}
_SHORT |= {"acknowledged", "confused", "sorry", "feelings"}
"""Topics whose phrasings are too short to lose a word."""
_NAMES = tuple(TOPICS)
_WEIGHTS = tuple(_OFTEN.get(name, 1.0) for name in TOPICS)


def question(topic: Topic, luck: random.Random) -> str:
    """A phrasing of `topic` for training: never a held-out one, whatever case, punctuation and courtesies."""
    while True:
        phrasing = filled(expand(luck.choice(luck.choice(topic.templates())), luck), luck)
        other = reworded(phrasing, luck) if topic.name not in _SHORT and luck.random() < 0.8 else phrasing
        text = typed(other, luck)
        if not (is_held_out(phrasing) or is_held_out(other) or is_held_out(text)):
            return text


def conversation(luck: random.Random) -> list[Turn]:
    """A piece of a conversation: one turn, or two that belong together."""
    kind = luck.random()
    if kind < STORY_SHARE:
        return _stories(luck)
    kind -= STORY_SHARE
    if kind < ECHO_SHARE:
        return [echo(luck)]
    kind -= ECHO_SHARE
    if kind < NAME_SHARE:
        return introduction(luck)
    kind -= NAME_SHARE
    if kind < FOLLOW_UP_SHARE:
        first, phrasing, second = luck.choice(FOLLOW_UPS)
        follow_up = typed(expand(phrasing, luck), luck, courtesies=False)
        if not is_held_out(follow_up, later=True):
            return [_turn(TOPICS[first], luck), Turn(second, follow_up, TOPICS[second].answer)]
    return [_turn(TOPICS[luck.choices(_NAMES, _WEIGHTS)[0]], luck)]


def _turn(topic: Topic, luck: random.Random) -> Turn:
    return Turn(topic.name, question(topic, luck), topic.answer)


def _stories(luck: random.Random) -> list[Turn]:
    """A story, and sometimes another."""
    turns = [_story(*_request(luck), luck)]
    if luck.random() < 0.15:
        more = typed(expand(luck.choice(MORE), luck), luck, courtesies=False)
        if not is_held_out(more, later=True):
            turns.append(_story(more, "", "", luck))
    return turns


def _request(luck: random.Random) -> tuple[str, str, str]:
    while True:
        text, hero, name = request(luck)
        asked = typed(text.lower() if luck.random() < 0.3 else text, luck, mistakes=False)
        if not (is_held_out(text) or is_held_out(asked)):
            return asked, hero, name


def _story(asked: str, hero: str, name: str, luck: random.Random) -> Turn:
    told, words = story(luck, hero, name)
    given = tuple(word for word in (hero, name) if word)
    return Turn("story", asked, told, given, tuple(word for word in words if word not in given))
