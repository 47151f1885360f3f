"""What went wrong, in one line for the user: pure functions from an exception to its text and exit code.

Errors of ours carry culprit and remedy already. What the operating system says is put into words here, with
the remedy where there is one. Anything else is a fault of ours and says so.
"""

import errno
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import click

from swarm.cli.streams import OutputLost
from swarm.errors import SwarmError, clean_text

FAILED, USAGE, OUR_FAULT, INTERRUPTED = 1, 2, 70, 130
REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space, or some of Swarm's own with `swarm cache gc`",
    errno.EDQUOT: "your disk quota is used up; free some space, or some of Swarm's own with `swarm cache gc`",
    errno.EACCES: "permission denied; check its owner and mode",
    errno.EPERM: "not permitted; check its owner and mode",
    errno.ENOENT: "no such file or directory",
    errno.ENOTDIR: "a part of that path is a file and no directory; choose another place",
    errno.EISDIR: "that is a directory; name a file",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EMFILE: "too many open files; raise the limit with `ulimit -n`",
    errno.EADDRINUSE: "that port is taken; choose another with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.ENOMEM: "out of memory",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One line for standard error (may be empty) and the exit code."""

    text: str
    exit_code: int
    output_lost: bool = False
    """Standard output takes nothing more."""


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
        case click.UsageError():
            command = leaf.ctx.command_path if leaf.ctx else "swarm"
            return Problem(_one_line(f"{leaf.format_message()} Try `{command} --help`."), USAGE)
        case OutputLost() if leaf.reader_left:
            return Problem("", 0, output_lost=True)  # whoever reads knows enough, which is no failure of ours
        case OutputLost():
            return Problem(f"standard output could not be written: {leaf}", FAILED, output_lost=True)
        case click.ClickException():
            return Problem(_one_line(leaf.format_message()), FAILED)
        case SwarmError():
            return Problem(_one_line(str(leaf)), FAILED)
        case OSError():
            return Problem(_one_line(_system(leaf)), FAILED)
        case MemoryError():
            return Problem("out of memory; a smaller --expert-ram or --weights q4 needs less", FAILED)
    if _is_engine_error(leaf):
        return Problem(_one_line(str(leaf)), FAILED)
    text = f"unexpected {type(leaf).__name__}: {leaf}. This is a fault in Swarm; SWARM_DEBUG=1 shows where"
    return Problem(_one_line(text), OUR_FAULT)


def _one_line(text: str) -> str:
    return clean_text(" ".join(text.split()))


def _system(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename is not None else ""
    if error.errno is not None and error.errno in REMEDIES:
        return place + REMEDIES[error.errno]
    return place + (error.strerror or str(error) or type(error).__name__)


def _is_engine_error(error: BaseException) -> bool:
    """True for the engine's errors, without importing the engine for commands that never used it."""
    module = sys.modules.get("engine.errors")
    return module is not None and isinstance(error, module.EngineError)


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
    if isinstance(leaf, click.ClickException | SwarmError) or _is_engine_error(leaf):
        return 3
    return 4 if isinstance(leaf, OSError) else 2


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
