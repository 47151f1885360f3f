"""How the demo model's conversations are written down: the chat template, and its layout for training."""

from __future__ import annotations

import random
from collections.abc import Iterator

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

SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You answer questions about Swarm.",
    "You are a small guide to Swarm.",
    "Answer in short sentences.",
)


def prompt(question: str) -> str:
    """What the model reads before it answers a first question."""
    return f"{START}user\n{question}{END}\n{START}assistant\n"


def pieces(luck: random.Random) -> Iterator[tuple[str, bool]]:
    """One endless conversation in pieces of text, each with whether the model has to learn to write it."""
    if luck.random() < 0.1:
        yield f"{START}system\n{luck.choice(SYSTEM_MESSAGES)}{END}\n", False
    while True:
        for turn in conversation(luck):
            yield from written(turn)


def written(turn: Turn) -> Iterator[tuple[str, bool]]:
    """A turn in its pieces; the break after each is one between tokens, too."""
    yield prompt(turn.question), False
    yield f"{turn.answer}{END}", True
    yield "\n", False
