"""Secrets that a command is given: tokens, keys, and invites of private swarms.

Everybody on the machine can read what stands in a command, and systemd puts the variables of a unit's command
there, too. So each secret can also be in a file: `--NAME-file FILE` beside `--NAME`, and @FILE for an invite.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from swarm.system import words_of_system

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_BYTES = 4096
FROM_FILE = "@"


def secret_option(
    name: str, meaning: str, *, metavar: str, envvar: str | None = None
) -> Callable[[Command], Command]:
    """An option for a secret, `name`, and `name`-file for a file that holds it; the command gets one value of both.

    A file wins over the variable `envvar`.
    """
    option = f"--{name}"
    place = f"swarm.secret.{name}"

    def remember(ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
        if path is not None:
            ctx.meta[place] = read_secret(path, parameter)

    def choose(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
        if place not in ctx.meta:
            return given
        assert parameter.name is not None
        if ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} and {option}-file exclude each other.")
        read: str = ctx.meta[place]
        return read

    def add(command: Command) -> Command:
        file = click.option(
            f"{option}-file",
            metavar="FILE",
            is_eager=True,  # known when the other one is looked at
            expose_value=False,
            callback=remember,
            help="The same from a file: a command can be seen by everybody on the machine.",
        )
        return click.option(option, metavar=metavar, envvar=envvar, callback=choose, help=meaning)(
            file(command)
        )

    return add


def read_secret(path: str, parameter: click.Parameter | None = None) -> str:
    """What a file holds, without the white space around it. A usage error when that is nothing, or no text."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode().strip()
    except OSError as error:
        raise click.BadParameter(f"{words_of_system(error)}.", param=parameter) from error
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is not text.", param=parameter) from None
    if not text or len(content) > MOST_BYTES:
        what = "is empty" if not text else f"has more than {MOST_BYTES} bytes"
        raise click.BadParameter(f"{path} {what}.", param=parameter)
    return text


def read_target(text: str) -> str:
    """An invite or address as it was given, or what a file holds when it was given as @FILE. A usage error."""
    return read_secret(text.removeprefix(FROM_FILE)) if text.startswith(FROM_FILE) else text
