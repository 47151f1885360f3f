"""What went wrong, in one line for the user: pure functions from an exception to its text and exit code.

Errors of ours carry culprit and remedy already, and `swarm.system` has words for what the operating system says.
Anything else is a fault of ours and says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import click

from swarm.cli.streams import OutputLost
from swarm.errors import SwarmError, clean_text
from swarm.system import words_of_system
from tui.problems import is_engine_error

FAILED, USAGE, OUR_FAULT, INTERRUPTED = 1, 2, 70, 130


@dataclass(frozen=True, slots=True)
class Problem:
    """One line for standard error (may be empty) and the exit code."""

    text: str
    exit_code: int
    output_lost: bool = False
    """Standard output takes nothing more."""
    help: str = ""
    """How a command is used that was given nothing to do; printed as it is."""


def explain(error: BaseException) -> Problem:
    """The line and exit code for anything a command raised."""
    leaf = _most_telling(error)
    if _came_of_an_interrupt(leaf):
        return Problem("", INTERRUPTED)
    match leaf:
        case click.exceptions.Exit():
            return Problem("", leaf.exit_code)
        case click.Abort():
            return Problem("", INTERRUPTED)
        case click.exceptions.NoArgsIsHelpError():
            return Problem("", USAGE, help=leaf.format_message())
        case click.UsageError():
            command = leaf.ctx.command_path if leaf.ctx else "swarm"
            said = leaf.format_message().rstrip()
            stop = "" if said.endswith((".", "?")) else "."
            return Problem(_one_line(f"{said}{stop} Try `{command} --help`."), USAGE)
        case OutputLost() if leaf.reader_left:
            return Problem("", 0, output_lost=True)  # whoever reads knows enough, which is no failure of ours
        case OutputLost():
            return Problem(f"standard output could not be written: {leaf}", FAILED, output_lost=True)
        case click.ClickException():
            return Problem(_one_line(leaf.format_message()), FAILED)
        case SwarmError():
            return Problem(_one_line(str(leaf)), FAILED)
        case OSError():
            return Problem(_one_line(words_of_system(leaf)), FAILED)
        case MemoryError():
            return Problem("out of memory; a smaller --expert-ram or --weights q4 needs less", FAILED)
    if is_engine_error(leaf):
        return Problem(_one_line(str(leaf)), FAILED)
    text = f"unexpected {type(leaf).__name__}: {leaf}. This is a fault in Swarm; SWARM_DEBUG=1 shows where"
    return Problem(_one_line(text), OUR_FAULT)


def _one_line(text: str) -> str:
    return clean_text(" ".join(text.split()))


def _most_telling(error: BaseException) -> BaseException:
    """The one error of a (nested) group that explains the others.

    The user's interrupt comes first, then the loss of standard output, which ends a program in any state; then a
    fault of ours, which must not hide behind a connection it broke; then what names a culprit; last what the
    system said.
    """
    return min(_leaves(error), key=_rank)


def _came_of_an_interrupt(error: BaseException | None) -> bool:
    """True when a Ctrl-C is at the bottom of an error: an import that it breaks fails in ways of its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _rank(leaf: BaseException) -> int:
    if isinstance(leaf, KeyboardInterrupt):
        return 0
    if isinstance(leaf, OutputLost):
        return 1
    if isinstance(leaf, click.ClickException | SwarmError) or is_engine_error(leaf):
        return 3
    return 4 if isinstance(leaf, OSError) else 2


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
