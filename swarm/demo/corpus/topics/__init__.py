"""The topics that the demo model knows, one TOML file a theme beside this module.

A table is a topic: `answer` is its one right answer; `facts` are pieces of it, in lower case, that no other
answer has all of; `nouns` go into the shared frames that ask what a thing is, `verbs` into those that ask how
something is done, `events` into those that ask what happens then, `cues` into those that only mention a thing;
`asks` stand as they are; `held_out` are phrasings that are never trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swarm.demo.corpus.data import table
from swarm.demo.corpus.grammar import every

THEMES = ("words", "how_to", "trust", "models", "newcomers", "small_talk")
_FRAMES = table("frames.toml")


@dataclass(frozen=True)
class Topic:
    """One thing that people ask about; see the module for the fields."""

    name: str
    theme: str
    """The file it is from, without ending."""
    answer: str
    facts: tuple[str, ...]
    held_out: tuple[str, ...]
    nouns: str = ""
    verbs: str = ""
    events: str = ""
    cues: str = ""
    asks: tuple[str, ...] = ()

    def templates(self) -> tuple[tuple[str, ...], ...]:
        """The groups of templates that ask about this topic: its own, and those from shared frames."""
        shared = (
            ("define", "NOUN", self.nouns),
            ("how_to", "DO", self.verbs),
            ("event", "EVENT", self.events),
            ("about", "CUE", self.cues),
        )
        made = (
            tuple(frame.replace(slot, part) for frame in _FRAMES[kind]) for kind, slot, part in shared if part
        )
        groups = (self.asks, self.asks, *made)
        return tuple(group for group in groups if group)

    def phrasings(self) -> Iterator[str]:
        """Every clean phrasing that the templates can give, held-out ones included where they coincide."""
        for group in self.templates():
            for template in group:
                yield from every(template)


TOPICS: dict[str, Topic] = {
    name: Topic(name=name, theme=theme, **fields)
    for theme in THEMES
    for name, fields in table(f"topics/{theme}.toml").items()
}

FOLLOW_UPS: tuple[tuple[str, str, str], ...] = table("follow_ups.toml")["follow_ups"]
"""(topic of the turn before, the short question, the topic it now means)"""
