"""A turn of a conversation: what somebody types, and the answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """`topic` names what is asked for, or is "story", "name", "unnamed" or "echo"; `given` are the words that the
    answer must take over from the conversation.
    """

    topic: str
    question: str
    answer: str
    given: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()  # words that the answer chooses freely once and then keeps to
