"""Options that several commands share, declared once: where the swarm is, which weights, how to sample."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swarm.cli.secrets import read_target, secret_option
from swarm.units import parse_bytes

if TYPE_CHECKING:
    from swarm.trust.sources import WebSource
    from swarm.wire.address import Address

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(click.ParamType[int]):
    """A number of bytes as people write it: 500MB, 8GB, 1.5GiB, 4096. Never none at all."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; a usage error for anything else."""
        if isinstance(value, int):
            return value
        try:
            count = parse_bytes(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if not count:
            self.fail(f"{value!r} is nothing; give a size of at least one byte.", param, ctx)
        return count


SIZE = Size()


class Host(click.ParamType[str]):
    """A host to listen at; an IPv6 address with or without brackets."""

    name = "host"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The host without brackets."""
        host = str(value)
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host


HOST = Host()


class Source(click.ParamType["WebSource"]):
    """Where on the web a model's files lie too."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "WebSource":
        """The source; a usage error for what is none."""
        from swarm.trust.sources import BadSource, read_source

        try:
            return read_source(str(value))
        except BadSource as error:
            self.fail(str(error), param, ctx)


def source_option(command: Command) -> Command:
    """--source, which the manifest will name."""
    return click.option(
        "--source",
        "sources",
        type=Source(),
        multiple=True,
        metavar="URL",
        help="The files lie below this web address, too (or in hf:OWNER/NAME@REVISION), and are fetched there when no "
        "peer can give them; with first+ before it, before peers are asked. May be repeated.",
    )(command)


def parse_target(invite: str | None, tracker: str | None) -> str | None:
    """The one place a swarm was named at, INVITE or --tracker; @FILE names what a file holds.

    Both, an empty one, or a file that cannot be read is a usage error.
    """
    if invite is not None and tracker is not None:
        raise click.UsageError("Give an invite or --tracker, not both.")
    named = tracker if invite is None else invite
    if named is not None and not named.strip():
        what = "--tracker" if invite is None else "The invite"
        raise click.UsageError(f"{what} is empty; leave it out to take the swarm used last.")
    return None if named is None else read_target(named)


def invite_of_environment() -> str | None:
    """The swarm that SWARM_INVITE names (itself, or as @FILE), for when the command line names none: there everybody on
    the machine can read it, and an invite can be a secret. A usage error when the file cannot be read."""
    named = os.environ.get("SWARM_INVITE", "").strip()
    return read_target(named) if named else None


def check_writable(path: Path, option: str) -> None:
    """Says before the work that its result could not be written to a file. Raises ClickException."""
    folder = path.parent
    if path.is_dir():
        raise click.ClickException(f"{path} is a directory; {option} takes a file.")
    if not folder.is_dir():
        what = (
            "is not a directory; choose another"
            if folder.exists()
            else "does not exist; make it first, or choose another"
        )
        raise click.ClickException(f"{folder} {what} {option}.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise click.ClickException(f"{path} cannot be written (permission denied); choose another {option}.")


class Number(click.FloatRange):
    """A number within bounds; NaN is none, and infinity lies beyond all of them."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error for anything else."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number that can be used.", param, ctx)
        return number


def swarm_options(command: Command, word: str = "[INVITE]") -> Command:
    """[INVITE], --tracker, --token and --token-file: where the swarm is. `word`: how the argument is called."""
    for add in reversed(
        (
            click.argument("invite", required=False, metavar=word),
            click.option(
                "--tracker",
                metavar="HOST[:PORT]",
                help="Where the swarm's tracker is (or an invite); @FILE, as for INVITE, reads it from a file.",
            ),
            secret_option("token", "Token of a private swarm, when there is no invite.", metavar="TOKEN"),
        )
    ):
        command = add(command)
    return command


def weights_options(command: Command) -> Command:
    """--weights and --expert-ram: how the model is held in memory."""
    for add in reversed(
        (
            click.option(
                "--weights",
                type=click.Choice(["auto", "native", "q8", "q4"]),
                default="auto",
                show_default=True,
                help="Number format to compute with; auto keeps stored integers and rounds the rest to q8.",
            ),
            click.option(
                "--expert-ram",
                type=SIZE,
                metavar="SIZE",
                help="Memory for experts, such as 8GB; by default a part of what is free.",
            ),
        )
    ):
        command = add(command)
    return command


def sampling_options(command: Command) -> Command:
    """Sampling; what is not given comes from the model's own generation config."""
    positive = Whole(min=1)
    for add in reversed(
        (
            click.option("--temperature", type=Number(min=0), help="0 always takes the likeliest token."),
            click.option(
                "--top-p", type=Number(0, 1, min_open=True), help="Least share of probability kept."
            ),
            click.option("--top-k", type=Whole(min=0), help="Number of tokens kept; 0: all."),
            click.option("--min-p", type=Number(0, 1), help="Keep tokens this likely beside the likeliest."),
            click.option("--repeat-penalty", type=Number(min=0, min_open=True), help="1: none."),
            click.option("--seed", type=Whole(min=0), help="Makes sampling repeatable."),
            click.option("--max-tokens", type=positive, help="Longest reply."),
        )
    ):
        command = add(command)
    return command


class Place(click.ParamType["Address"]):
    """A port, or HOST:PORT, to listen at."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Address":
        """The address; a bare port is one of the loopback interface."""
        from swarm.wire.address import Address, BadAddress, parse_address

        if isinstance(value, Address):
            return value
        try:
            return parse_address(f"127.0.0.1:{value}" if value.isdigit() else value, 0)
        except BadAddress as error:
            self.fail(str(error), param, ctx)


def metrics_option(command: Command) -> Command:
    """--metrics: where Prometheus may ask."""
    return click.option(
        "--metrics",
        type=Place(),
        metavar="[HOST:]PORT",
        help="Answer Prometheus at this port, on this machine only unless a host is given; 0: any free one.",
    )(command)


class Key(click.ParamType[bytes]):
    """A public key, 64 hex digits."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """The 32 bytes; a usage error for anything else."""
        try:
            key = value if isinstance(value, bytes) else bytes.fromhex(value)
        except ValueError:
            key = b""
        if len(key) != 32:
            self.fail(
                f"{value!r} is no key of 64 hex digits; `swarm serve --json` prints those of its operator and "
                "its peer.",
                param,
                ctx,
            )
        return key


KEY = Key()


def keys_option(name: str, into: str, meaning: str) -> Callable[[Command], Command]:
    """An option that names public keys, each time it is given one more."""
    return click.option(name, into, type=KEY, multiple=True, metavar="KEY", help=meaning)


class Named(click.Path):
    """A path; an empty one names nothing, rather than the directory one is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error when there is none."""
        if value == "":
            self.fail("it is empty; name a file or directory.", param, ctx)
        return super().convert(value, param, ctx)


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "number"


DIRECTORY = Named(path_type=Path)


def _use_threads(_ctx: click.Context, _parameter: click.Parameter, count: int | None) -> None:
    if count is not None:
        from engine.kernels import set_threads

        set_threads(count)


threads_option = click.option(
    "--threads",
    type=Whole(min=1),
    metavar="N",
    expose_value=False,
    callback=_use_threads,
    help="Threads that compute; by default one a physical core.",
)
