"""Turns whose answer repeats what was said: somebody's name, or words to say after him."""

from __future__ import annotations

import random

from swarm.demo.corpus.fillers import THINGS, made_up
from swarm.demo.corpus.grammar import expand
from swarm.demo.corpus.noise import typed
from swarm.demo.corpus.stories import HER, HIS
from swarm.demo.corpus.turns import Turn

MEETING = "{hello |hi |hey |}{my name is|i am|i'm|call me|i am called|they call me|it is me} NAME"
ASKING = (
    "{what is|what's|do you know|tell me|do you remember|say} my name",
    "who am i",
    "do you remember {me|who i am|what i am called}",
)
SAYING = "{repeat after me|say|please say|repeat|say after me|can you say|write|now say}{:|} WORDS"
UNNAMED = "You have not told me your name."


def introduction(luck: random.Random) -> list[Turn]:
    """Somebody says his name, and may ask for it afterwards; or asks for what was never said."""
    asked = typed(expand(luck.choice(ASKING), luck), luck, courtesies=False)
    if luck.random() < 0.15:
        return [Turn("unnamed", asked, UNNAMED)]
    name = luck.choice(HER + HIS) if luck.random() < 0.6 else made_up(luck).capitalize()
    said = typed(expand(MEETING, luck), luck, courtesies=False, mistakes=False)
    said = said.replace("NAME", name if luck.random() < 0.7 else name.lower())
    turns = [Turn("name", said, f"Nice to meet you, {name}! Ask me something about Swarm.", (name,))]
    if luck.random() < 0.7:
        turns.append(Turn("name", asked, f"Your name is {name}.", (name,)))
    return turns


def echo(luck: random.Random) -> Turn:
    """Words to repeat, some of which do not exist."""
    words = [luck.choice(THINGS) if luck.random() < 0.6 else made_up(luck) for _ in range(luck.randint(1, 5))]
    said = typed(expand(SAYING, luck), luck, courtesies=False, mistakes=False).rstrip("?!. ")
    return Turn(
        "echo", said.replace("WORDS", " ".join(words)), " ".join(words), tuple(" ".join(words).split())
    )
