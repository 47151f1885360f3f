"""Puts a question in other words, so that no one word of it is needed to understand it."""

from __future__ import annotations

import random
import re

from swarm.demo.corpus.data import table

_WORDS = table("wording.toml")
_LITTLE = frozenset(_WORDS["little"])
_BETWEEN: tuple[str, ...] = _WORDS["between"]
GROUPS: tuple[tuple[str, ...], ...] = _WORDS["groups"]
"""Words of one meaning, as far as questions go."""
_SYNONYMS = {word: tuple(other for other in group if other != word) for group in GROUPS for word in group}
_KNOWN = "|".join(sorted(map(re.escape, _SYNONYMS), key=len, reverse=True))
_WHOLE = re.compile(rf"(?<![-/\w])(?:{_KNOWN})(?![-/\w])")


def reworded(phrasing: str, luck: random.Random) -> str:
    """`phrasing`, lower case, in other words: with synonyms, with little words put in, left out or swapped.

    Only a phrasing with two words that are not little may lose some.
    """
    text = phrasing
    if luck.random() < 0.4:
        text = _WHOLE.sub(lambda word: _synonym(word.group(), luck), text)
    words = text.split()
    if luck.random() < 0.1:
        words.insert(luck.randrange(1, len(words) + 1), luck.choice(_BETWEEN))
    said = [word for word in words if word not in _LITTLE]
    if len(said) >= 2 and luck.random() < 0.08:
        return " ".join(said)
    if len(said) >= 2 and luck.random() < 0.15:
        words = _shortened(words, luck)
    if len(words) >= 4 and luck.random() < 0.04:
        at = luck.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    return " ".join(words)


def _synonym(word: str, luck: random.Random) -> str:
    return luck.choice(_SYNONYMS[word]) if luck.random() < 0.4 else word


def _shortened(words: list[str], luck: random.Random) -> list[str]:
    """`words` without one or two of the little ones, as far as there are any."""
    little = [place for place, word in enumerate(words) if word in _LITTLE]
    gone = set(luck.sample(little, min(len(little), luck.choice((1, 1, 2)))))
    return [word for place, word in enumerate(words) if place not in gone]
