"""Options that several commands share, declared once: where the swarm is, which weights, how to sample."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from swarm.wire.address import Address

Command = TypeVar("Command", bound=Callable[..., Any])
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


class Size(click.ParamType[int]):
    """A number of bytes as people write it: 500MB, 8GB, 1.5GiB, 4096."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; a usage error for anything else."""
        if isinstance(value, int):
            return value
        matched = _SIZE.fullmatch(value.strip())
        if not matched:
            self.fail(f"{value!r} is not a size; write it like 500MB, 8GB or 1.5GiB.", param, ctx)
        number, unit, binary = matched.groups()
        scale = _UNITS[unit.upper()]
        if binary:
            scale = 1024 ** list(_UNITS).index(unit.upper())
        return int(float(number) * scale)


SIZE = Size()


def parse_target(invite: str | None, tracker: str | None) -> str | None:
    """The one place a swarm was named at: INVITE or --tracker. Both is a usage error, neither is None."""
    if invite and tracker:
        raise click.UsageError("Give an invite or --tracker, not both.")
    return invite or tracker


def swarm_options(command: Command) -> Command:
    """[INVITE], --tracker and --token: where the swarm is."""
    for add in reversed(
        (
            click.argument("invite", required=False, metavar="[INVITE]"),
            click.option(
                "--tracker", metavar="HOST[:PORT]", help="Where the swarm's tracker is (or an invite)."
            ),
            click.option(
                "--token", metavar="TOKEN", help="Token of a private swarm, when there is no invite."
            ),
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
    positive = click.IntRange(min=1)
    for add in reversed(
        (
            click.option(
                "--temperature", type=click.FloatRange(min=0), help="0 always takes the likeliest token."
            ),
            click.option(
                "--top-p", type=click.FloatRange(0, 1, min_open=True), help="Least share of probability kept."
            ),
            click.option("--top-k", type=click.IntRange(min=0), help="Number of tokens kept; 0: all."),
            click.option(
                "--min-p", type=click.FloatRange(0, 1), help="Keep tokens this likely beside the likeliest."
            ),
            click.option("--repeat-penalty", type=click.FloatRange(min=0, min_open=True), help="1: none."),
            click.option("--seed", type=click.IntRange(min=0), help="Makes sampling repeatable."),
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


DIRECTORY = click.Path(path_type=Path)
