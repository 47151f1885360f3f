"""The topics that the demo model knows, one TOML file a theme beside this module.

A table is a topic: `answer` is its one right answer; `facts` are pieces of it, in lower case, that no other answer
has all of; `nouns` go into the shared frames that ask what a thing is, `verbs` into those that ask how something is
done, `asks` stand as they are; `held_out` are phrasings that are never trained on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from swarm.demo.corpus.frames import DEFINE, HOW_TO
from swarm.demo.corpus.grammar import every

THEMES = ("words", "how_to", "trust", "models", "small_talk")


@dataclass(frozen=True)
class Topic:
    """One thing that people ask about; see the module for the fields."""

    name: str
    answer: str
    facts: tuple[str, ...]
    held_out: tuple[str, ...]
    nouns: str = ""
    verbs: str = ""
    asks: tuple[str, ...] = ()

    def templates(self) -> tuple[tuple[str, ...], ...]:
        """The groups of templates that ask about this topic: its own, the defining ones, the how-to ones."""
        groups = (
            self.asks,
            tuple(frame.replace("NOUN", self.nouns) for frame in DEFINE) if self.nouns else (),
            tuple(frame.replace("DO", self.verbs) for frame in HOW_TO) if self.verbs else (),
        )
        return tuple(group for group in groups if group)

    def phrasings(self) -> Iterator[str]:
        """Every clean phrasing that the templates can give, held-out ones included where they coincide."""
        for group in self.templates():
            for template in group:
                yield from every(template)


def _load() -> dict[str, Topic]:
    topics: dict[str, Topic] = {}
    for theme in THEMES:
        tables = tomllib.loads(files(__package__).joinpath(f"{theme}.toml").read_text(encoding="utf-8"))
        for name, table in tables.items():
            fields = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
            topics[name] = Topic(name=name, **fields)
    return topics


TOPICS = _load()

FOLLOW_UPS: tuple[tuple[str, str, str], ...] = (
    ("lend_disk", "{and|and how about|what about|how about} {compute|cpu|my cpu|compute power|my processor}", "lend_compute"),
    ("lend_compute", "{and|and how about|what about|how about} {disk|disk space|storage|my disk}", "lend_disk"),
    ("lend_disk", "{how much|how much of it|and how much|how much space|will it fill my disk}", "limit"),
    ("lend_disk", "{why should i|and why|why|what do i get for it}", "why_lend"),
    ("lend_compute", "{why should i|and why|why|what do i get for it}", "why_lend"),
    ("lend_disk", "{how do i stop it|and how do i stop|how do i end it|can i stop it later}", "leave"),
    ("lend_compute", "{how do i stop it|and how do i stop|how do i end it|can i stop it later}", "leave"),
    ("donor", "{what if it lies|what if one lies|and if it lies|can they lie}", "liar"),
    ("donor", "{what if it dies|what if one dies|and if it dies|what if it crashes}", "dead"),
    ("donor", "{what if it is slow|and if it is slow|what if one hangs}", "slow"),
    ("donor", "{how do i become one|can i be one|how can i become a donor}", "lend_compute"),
    ("liar", "{and if it dies|what if it dies|what if it only crashes}", "dead"),
    ("dead", "{and if it lies|what if it lies|what if it cheats}", "liar"),
    ("tracker", "{what if it dies|what if it is down|and without it|and if it crashes}", "tracker_down"),
    ("tracker", "{which port|on which port does it listen|what is its port}", "port"),
    ("origin", "{what if it dies|what if it is gone|and without it|and if it crashes}", "origin_gone"),
    ("expert", "{who chooses them|who picks them|how are they chosen|and who decides}", "router"),
    ("manifest", "{what if the key changes|and if the key changes}", "key_change"),
    ("chunk", "{where are they kept|where are they stored|and where do you keep them}", "cas"),
    ("chunk", "{what if it is wrong|what if one is broken|and if it is bad}", "wrong_bytes"),
    ("serve", "{how do others join|how can my friends chat|and how do they join|and then}", "chat"),
    ("serve", "{what is an invite|what is that invite|and what is in the invite|what do i do with the invite}", "invite"),
    ("chat", "{does it work offline|and offline|and without internet|what about offline}", "offline"),
    ("mirror", "{how do i mount it|can i mount it|and how do i mount it}", "mount"),
    ("who_are_you", "{how big are you|and how big|how large}", "size"),
    ("who_are_you", "{who made you|how were you trained|and who trained you}", "training"),
    ("who_are_you", "{what can you do|and what can you do|what else}", "abilities"),
    ("verified", "{and who sees my text|and what about privacy|is it private too}", "privacy"),
    ("audit", "{and then what happens to the liar|what happens to liars|and if it lied}", "liar"),
    ("speed", "{do i need a gpu|and with a gpu|what about a gpu}", "gpu"),
    ("install", "{on which systems|does it run on a mac|and on windows}", "platforms"),
)
"""(topic of the turn before, the short question, the topic it now means)"""
