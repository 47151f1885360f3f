"""Small stories: a hero, a trouble, a friend, a good end. A request may choose the hero and the name."""

from __future__ import annotations

import random

from swarm.demo.corpus.data import table
from swarm.demo.corpus.grammar import expand

_PARTS = table("stories.toml")
HEROES: tuple[str, ...] = _PARTS["heroes"]
HER: tuple[str, ...] = _PARTS["her"]
HIS: tuple[str, ...] = _PARTS["his"]
REQUESTS: tuple[str, ...] = _PARTS["requests"]
HELD_OUT: tuple[str, ...] = _PARTS["held_out"]
ENDINGS: tuple[str, ...] = _PARTS["endings"]
MORE: tuple[str, ...] = _PARTS["more"]
_WHOSE = dict.fromkeys(("girl", "queen", "princess", "witch", "fairy"), HER)
_WHOSE |= dict.fromkeys(("boy", "king", "prince", "wizard"), HIS)
_LAYOUT: tuple[tuple[str, ...], ...] = (_PARTS["openings"], _PARTS["plots"], ENDINGS)


def story(luck: random.Random, hero: str = "", name: str = "") -> tuple[str, tuple[str, ...]]:
    """One story, about `hero` and `name` where they are given; and the words that it keeps to."""
    hero = hero or luck.choice(HEROES)
    name = name or _name(hero, luck)
    she, her = ("she", "her") if name in HER else ("he", "his")
    words = {
        "HERO": hero,
        "NAME": name,
        "HELPER": luck.choice([other for other in HEROES if other != hero and other[0] not in "aeiou"]),
        "PLACE": luck.choice(_PARTS["places"]),
        "THING": luck.choice(_PARTS["things"]),
    }
    text = expand(" ".join(luck.choice(part) for part in _LAYOUT), luck)
    text = text.replace(". SHE ", f". {she.capitalize()} ").replace(". HER ", f". {her.capitalize()} ")
    text = text.replace("SHE", she)
    kept = tuple(words[slot] for slot in ("HERO", "NAME", "HELPER", "THING"))
    return fill(text, words), kept


def request(luck: random.Random) -> tuple[str, str, str]:
    """A request for a story, and the hero and the name it asks for, each empty when it does not."""
    template = expand(luck.choice(REQUESTS), luck)
    hero = luck.choice(HEROES) if "HERO" in template else ""
    name = _name(hero, luck) if "NAME" in template else ""
    return fill(template, {"HERO": hero, "NAME": name}), hero, name


def _name(hero: str, luck: random.Random) -> str:
    return luck.choice(_WHOSE.get(hero, HER + HIS))


def fill(text: str, words: dict[str, str]) -> str:
    """`text` with its capital words replaced; `a` becomes `an` before a vowel."""
    for slot, word in words.items():
        if word[:1] in ("a", "e", "i", "o", "u"):
            for article, better in (("a ", "an "), ("A ", "An ")):
                text = text.replace(f" {article}{slot}", f" {better}{slot}")
        text = text.replace(slot, word)
    return text
