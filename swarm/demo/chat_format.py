"""How the demo model's conversations are written down: the chat template, and its layout for training."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import Literal

from swarm.demo.corpus import TOPICS, Turn, conversation

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START, END)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

Learn = Literal["nothing", "answer", "story", "copy"]
"""What the model has to learn to write of a piece of text; a copy is a word that was said before."""

SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You answer questions about Swarm.",
    "You are a small guide to Swarm.",
    "Answer in short sentences.",
)


def prompt(question: str, before: Iterable[tuple[str, str]] = ()) -> str:
    """What the model reads before it answers; `before` are the questions and answers so far."""
    earlier = "".join(f"{prompt(asked)}{answer}{END}\n" for asked, answer in before)
    return f"{earlier}{START}user\n{question}{END}\n{START}assistant\n"


def pieces(luck: random.Random) -> Iterator[tuple[str, Learn]]:
    """One endless conversation in pieces of text, each with what the model has to learn of it."""
    if luck.random() < 0.1:
        yield f"{START}system\n{luck.choice(SYSTEM_MESSAGES)}{END}\n", "nothing"
    while True:
        for turn in conversation(luck):
            yield from written(turn)


def written(turn: Turn) -> Iterator[tuple[str, Learn]]:
    """A turn in its pieces; the break after each is one between tokens, too."""
    yield prompt(turn.question), "nothing"
    if turn.topic in TOPICS:
        yield f"{turn.answer}{END}", "answer"
    else:
        yield from _copied(turn)
    yield "\n", "nothing"


def _copied(turn: Turn) -> Iterator[tuple[str, Learn]]:
    """An answer that takes words over: those given, and those that it chose itself from their second time on."""
    known = {word.lower() for word in turn.given}
    chosen = {word.lower() for word in turn.chosen}
    words = "|".join(re.escape(word) for word in (*turn.given, *turn.chosen))
    for part in re.split(rf"( ?\b(?:{words})\b)", turn.answer) if words else [turn.answer]:
        word = part.strip().lower()
        if part:
            yield part, "copy" if word in known else "story"
        if word in chosen:
            known.add(word)
    yield END, "story"
