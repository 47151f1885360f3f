"""What went wrong, in a sentence for the user: errors of ours carry theirs, the system's are given words.

What is neither is a fault of ours, and is said to be one.
"""

from __future__ import annotations

import sys

from swarm.errors import SwarmError
from swarm.system import words_of_system


class NotThere(Exception):
    """A place cannot do what was asked for; the message says what to do instead."""


def is_expected(error: BaseException) -> bool:
    """Whether this can happen to a program without a fault; anything else that is raised is one."""
    return isinstance(error, SwarmError | NotThere | OSError | MemoryError) or is_engine_error(error)


def is_engine_error(error: BaseException) -> bool:
    """Whether it is one of the engine's, without importing the engine for those who never used it."""
    module = sys.modules.get("engine.errors")
    return module is not None and isinstance(error, module.EngineError)


def explain(error: Exception) -> str:
    """The sentence, with its full stop."""
    if isinstance(error, SwarmError | NotThere) or is_engine_error(error):
        return str(error)
    if isinstance(error, OSError):
        return f"{words_of_system(error)}."
    if isinstance(error, MemoryError):
        return "This machine has too little memory for that; less, or a smaller model, may fit."
    return f"Swarm made a mistake: {type(error).__name__}: {error}."
