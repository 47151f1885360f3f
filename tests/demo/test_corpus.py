"""The demo model's text: the same for the same seed, true to itself, and without the held-out questions."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import islice

import pytest

from swarm.demo.chat_format import END, START, pieces
from swarm.demo.corpus import (
    FOLLOW_UPS,
    TOPICS,
    Question,
    Topic,
    conversation,
    held_out,
    is_right,
    newcomers,
    normalise,
    strangers,
)
from swarm.demo.corpus.conversations import question
from swarm.demo.corpus.fillers import filled
from swarm.demo.corpus.grammar import every, expand
from swarm.demo.corpus.noise import mistyped, typed
from swarm.demo.corpus.stories import HER, HEROES, HIS, REQUESTS, request, story
from swarm.demo.corpus.wording import GROUPS, reworded

topics = pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)


def turns(seed: int, count: int) -> list[tuple[str, str, str]]:
    luck = random.Random(seed)
    return [(t.topic, t.question, t.answer) for _ in range(count) for t in conversation(luck)]


def test_the_same_seed_gives_the_same_text() -> None:
    assert turns(7, 300) == turns(7, 300)
    assert turns(7, 300) != turns(8, 300)


def test_the_text_of_a_seed_is_what_the_shipped_model_learnt_from() -> None:
    stream = pieces(random.Random(1))
    text = repr([next(stream) for _ in range(6_000)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "59d2405802a219a5"


def test_training_text_has_no_held_out_question() -> None:
    assert len({normalise(question.text) for question in held_out()}) == len(held_out()) >= 120
    judges = [question for question in (*newcomers(), *strangers()) if not question.before]
    forbidden = {normalise(question.text) for question in (*held_out(), *judges)}
    asked = {normalise(question) for _, question, _ in turns(1, 12_000)}
    assert len(asked) > 8_000
    assert not asked & forbidden


@topics
def test_a_topic_is_asked_in_many_ways_and_never_as_held_out(topic: Topic) -> None:
    forbidden = {normalise(text) for text in topic.held_out}
    trained = {normalise(text) for text in islice(topic.phrasings(), 2_000)} - forbidden
    assert len(trained) >= 25
    assert len(forbidden) >= 3
    luck = random.Random(topic.name)
    assert not {normalise(question(topic, luck)) for _ in range(100)} & forbidden


def test_a_phrasing_that_a_template_shares_with_the_held_out_ones_is_drawn_again() -> None:
    assert "what are replicas good for" in TOPICS["replica"].held_out
    topic = Topic(
        "x", "words", "An answer.", ("answer",), (), asks=("{what are replicas good for|what else}",)
    )
    luck = random.Random(3)
    assert not any("replica" in question(topic, luck).lower() for _ in range(50))


@topics
def test_an_answer_is_right_for_its_own_topic_only(topic: Topic) -> None:
    assert [other for other in TOPICS if is_right(other, topic.answer)] == [topic.name]
    assert topic.facts
    assert all(fact == fact.lower() for fact in topic.facts)


@topics
def test_half_an_answer_or_two_answers_are_not_right(topic: Topic) -> None:
    other = next(other for other in TOPICS.values() if other.name != topic.name)
    assert not is_right(topic.name, f"{topic.answer} {other.answer}")
    assert not is_right(topic.name, "")
    assert not is_right(topic.name, topic.answer[:6])


def test_no_phrasing_asks_for_two_answers() -> None:
    luck = random.Random(6)
    meant: dict[str, set[str]] = defaultdict(set)
    for topic in TOPICS.values():
        for _ in range(1_500):
            phrasing = filled(expand(luck.choice(luck.choice(topic.templates())), luck), luck)
            meant[normalise(phrasing)].add(topic.name)
    assert {text: names for text, names in meant.items() if len(names) > 1} == {}


@pytest.mark.parametrize("seed", range(30))
def test_a_story_tells_of_what_was_asked(seed: int) -> None:
    luck = random.Random(seed)
    text, hero, name = request(luck)
    told, _ = story(luck, hero, name)
    assert is_right("story", told, text)
    assert not any(slot in told for slot in ("HERO", "NAME", "HELPER", "PLACE", "THING", "SHE", "HER"))
    assert not is_right("story", told[: len(told) // 2], text)
    assert not is_right("story", TOPICS["tracker"].answer, text)


def test_another_hero_is_not_what_was_asked() -> None:
    told, _ = story(random.Random(5), "frog", "Mia")
    assert is_right("story", told, "a story about a frog named Mia")
    assert not is_right("story", told, "a story about a dragon named Mia")
    assert not is_right("story", told, "a story about a frog named Tom")


def test_heroes_and_names_have_one_meaning() -> None:
    assert len({*HEROES, *HER, *HIS}) == len(HEROES) + len(HER) + len(HIS)
    assert all("{" not in text for template in REQUESTS for text in every(template))


def test_follow_ups_name_topics_and_are_not_held_out() -> None:
    forbidden = {normalise(question.text) for question in held_out()}
    for first, template, second in FOLLOW_UPS:
        assert first in TOPICS
        assert second in TOPICS
        assert not {normalise(text) for text in every(template)} & forbidden


def test_templates_expand_to_what_every_lists() -> None:
    template = "{a|b {c|d}|} e"
    assert list(every(template)) == ["a e", "b c e", "e", "a e", "b d e", "e"]
    luck = random.Random(1)
    assert {expand(template, luck) for _ in range(100)} == set(every(template))
    with pytest.raises(ValueError, match="unbalanced"):
        expand("{a|b", luck)


def test_typing_keeps_the_words_apart_from_one_mistake() -> None:
    luck = random.Random(2)
    for _ in range(200):
        assert len(typed("how do i lend disk", luck, courtesies=False).split()) in (5, 6)
        before, after = "donate compute", mistyped("donate compute", luck)
        assert sum(a != b for a, b in zip(before.split(), after.split(), strict=True)) <= 1
    assert mistyped("a b c", luck) == "a b c"


def test_rewording_keeps_two_words_that_say_something_and_short_phrasings_whole() -> None:
    luck = random.Random(8)
    reworded_ones = {reworded("when does a donor vanish", luck) for _ in range(300)}
    assert len(reworded_ones) > 20
    assert all({"donor", "vanish"} <= set(text.split()) for text in reworded_ones)
    assert {"donor vanish", "when does a donor vanish"} <= reworded_ones
    assert {reworded("who are you", luck) for _ in range(300)} >= {"who are you", "who are u"}
    assert all(len(reworded("tracker", luck).split()) in (1, 2) for _ in range(100))


def test_a_word_has_one_group_of_synonyms() -> None:
    words = [word for group in GROUPS for word in group]
    assert len(words) == len(set(words)) > 200


def test_only_answers_are_to_be_learnt() -> None:
    stream = list(islice(pieces(random.Random(4)), 6_000))
    answers = {topic.answer for topic in TOPICS.values()}
    for text, learn in stream:
        assert (learn == "nothing") == (text.startswith(START) or text == "\n")
        assert (learn == "answer") == (text.removesuffix(END) in answers)
    assert sum(learn == "answer" for _, learn in stream) > 700
    assert sum(learn == "copy" for _, learn in stream) > 300


def test_a_copied_word_was_said_before() -> None:
    before = ""
    for text, learn in islice(pieces(random.Random(5)), 6_000):
        assert learn != "copy" or text.strip().lower() in before.lower()
        before += text


def test_pieces_end_where_tokens_do() -> None:
    """What is encoded piece by piece is what the template's whole text is encoded to."""
    for text, learn in islice(pieces(random.Random(6)), 6_000):
        assert learn != "copy" or text.strip().isalnum() or " " in text.strip()


@pytest.mark.parametrize(("questions", "least"), [(newcomers, 100), (strangers, 60)])
def test_the_questions_that_judge_are_many_and_about_known_topics(
    questions: Callable[[], tuple[Question, ...]], least: int
) -> None:
    asked = questions()
    assert len({(normalise(q.text), q.before) for q in asked}) == len(asked) >= least
    assert {q.topic for q in asked} <= {*TOPICS, "story"}
