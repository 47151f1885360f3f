"""How the demo model's conversations are written down: the chat template, and its layout for training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from swarm.demo.corpus import Turn, conversation

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

Learn = Literal["nothing", "answer", "story"]
"""What the model has to learn to write of a piece of text."""

SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You answer questions about Swarm.",
    "You are a small guide to Swarm.",
    "Answer in short sentences.",
)


def prompt(question: str) -> str:
    """What the model reads before it answers a first question."""
    return f"{START}user\n{question}{END}\n{START}assistant\n"


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
    yield f"{turn.answer}{END}", "story" if turn.topic == "story" else "answer"
    yield "\n", "nothing"
