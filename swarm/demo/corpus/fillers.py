"""What is filled into templates besides their alternatives: everyday things, people, numbers, words that do not exist.

They make the questions that the model must say it cannot answer; so many that it learns the shape of what it does
not know, not a list.
"""

from __future__ import annotations

import random
import re

from swarm.demo.corpus.data import table

_WORDS = table("fillers.toml")
THINGS: tuple[str, ...] = _WORDS["things"]
PEOPLE: tuple[str, ...] = _WORDS["people"]
_SLOT = re.compile(r"\b(THING|PERSON|NUMBER|MADEUP|NONSENSE)\b")
_ONSETS = ("b", "bl", "br", "d", "dr", "f", "fl", "g", "gl", "gr", "h", "k", "kl", "l", "m", "n", "p", "pr", "qu", "r",
           "s", "sn", "sp", "t", "tr", "v", "w", "z")  # fmt: skip
_RHYMES = (
    "a",
    "e",
    "i",
    "o",
    "u",
    "ab",
    "en",
    "ing",
    "olt",
    "um",
    "ax",
    "erk",
    "ik",
    "osh",
    "ump",
    "and",
    "ee",
    "oo",
)


def filled(text: str, luck: random.Random) -> str:
    """`text` with a fresh word for each capital slot of this module."""
    return _SLOT.sub(lambda slot: _word(slot.group(), luck), text)


def made_up(luck: random.Random) -> str:
    """A word that does not exist, as `blorp`."""
    return "".join(luck.choice(_ONSETS) + luck.choice(_RHYMES) for _ in range(luck.choice((1, 2, 2, 2, 3))))


def _word(slot: str, luck: random.Random) -> str:
    if slot == "THING":
        return luck.choice(THINGS)
    if slot == "PERSON":
        return luck.choice(PEOPLE)
    if slot == "NUMBER":
        return str(luck.randrange(10 ** luck.randint(1, 3)))
    if slot == "MADEUP":
        return made_up(luck)
    return "".join(luck.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(luck.randint(3, 8)))
