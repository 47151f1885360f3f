"""What the demo model learns from: questions and answers about Swarm, and small stories, all from a program.

Everything is a pure function of a seed: the same seed gives the same text on every machine. The phrasings in
`held_out()`, `newcomers()` and `strangers()` never occur in the training text; `check.is_right` tells whether an
answer is right.
"""

from swarm.demo.corpus.check import Question, held_out, is_right, newcomers, strangers
from swarm.demo.corpus.conversations import conversation
from swarm.demo.corpus.grammar import normalise
from swarm.demo.corpus.topics import FOLLOW_UPS, TOPICS, Topic
from swarm.demo.corpus.turns import Turn

__all__ = [
    "FOLLOW_UPS",
    "TOPICS",
    "Question",
    "Topic",
    "Turn",
    "conversation",
    "held_out",
    "is_right",
    "newcomers",
    "normalise",
    "strangers",
]
