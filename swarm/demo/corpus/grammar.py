"""A tiny template language: `{a|b|c}` stands for one of its alternatives, nested as deep as one likes.

`expand` draws one text and `every` lists all of them. `normalise` says when two phrasings count as the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_INNERMOST = re.compile(r"\{([^{}]*)\}")


def expand(template: str, luck: random.Random) -> str:
    """One text of `template`, each choice drawn evenly with `luck`; surplus spaces are dropped.

    Raises ValueError when a brace has no partner.
    """
    text = template
    while match := _INNERMOST.search(text):
        text = text[: match.start()] + luck.choice(match.group(1).split("|")) + text[match.end() :]
    return _tidy(text, template)


def every(template: str) -> Iterator[str]:
    """All texts of `template`, in order; a text that several choices lead to comes several times."""
    match = _INNERMOST.search(template)
    if match is None:
        yield _tidy(template, template)
        return
    for choice in match.group(1).split("|"):
        yield from every(template[: match.start()] + choice + template[match.end() :])


def normalise(text: str) -> str:
    """`text` without case, punctuation and surplus spaces: what makes two phrasings the same phrasing."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", text.lower().replace("-", " ")).split())


def _tidy(text: str, template: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError(f"unbalanced braces in the template {template!r}")
    return " ".join(text.split())
