"""How a command asks donors: --hedge, --audit, --trace; and what it says about it at the end."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swarm.cli.options import check_writable
from swarm.units import parse_share

if TYPE_CHECKING:
    from engine.engine import Engine
    from swarm.peers.models import OpenModel
    from swarm.peers.network import NetworkThread
    from swarm.peers.remote import RemoteExperts
    from swarm.peers.session import Session

Command = TypeVar("Command", bound=Callable[..., Any])


class Hedge(click.ParamType[str]):
    """auto, off, or milliseconds."""

    name = "hedge"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, checked."""
        text = str(value).strip().lower().removesuffix("ms")
        if text not in ("auto", "off") and not re.fullmatch(r"\d{1,5}(\.\d+)?", text):
            self.fail(f"{value!r} is none of auto, off, or milliseconds such as 20.", param, ctx)
        return text


class Share(click.ParamType[float]):
    """A share, as 5% or 0.05."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share, 0 to 1."""
        if isinstance(value, float):
            return value
        try:
            return parse_share(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


NO_TOKEN_NEEDED = "--token (or --token-file) is for a swarm; --local needs none."
NOBODY_TO_TRACE = "--trace writes what donors are asked; with --local and --offline nobody is asked."


def _writable(_ctx: click.Context, _parameter: click.Parameter, trace: Path | None) -> Path | None:
    """The file of --trace, known to be writable before anything slow begins."""
    if trace is not None:
        check_writable(trace, "--trace")
    return trace


def asking_options(command: Command) -> Command:
    """--hedge, --audit and --trace."""
    for add in reversed(
        (
            click.option(
                "--hedge",
                type=Hedge(),
                default="auto",
                show_default=True,
                metavar="auto|MS|off",
                help="When a late call is also sent to another donor.",
            ),
            click.option(
                "--audit",
                type=Share(),
                default="5%",
                show_default=True,
                metavar="SHARE",
                help="Share of donors' answers that are checked by recomputing them.",
            ),
            click.option(
                "--trace",
                type=Path,
                callback=_writable,
                metavar="FILE",
                help="Write what each layer asked of whom, as JSON lines.",
            ),
        )
    ):
        command = add(command)
    return command


drafts_option = click.option(
    "--drafts/--no-drafts",
    default=True,
    show_default=True,
    help="Have donors compute tokens that repeat earlier text along with the newest; changes nothing but speed.",
)


@dataclass(frozen=True)
class Asking:
    """What a user chose."""

    hedge: str = "auto"
    audit: float = 0.05
    trace: Path | None = None
    show: Callable[["RemoteExperts"], None] = lambda _: None
    """Given the experts at the end, for a summary."""
    keep: bool = False
    """Whether the user gave memory for experts, so that some may be kept here."""

    @contextmanager
    def experts(
        self, network: "NetworkThread", session: "Session", found: "OpenModel", engine: "Engine"
    ) -> Iterator["RemoteExperts"]:
        """The experts of an open model, run by donors."""
        from swarm.cli.output import say
        from swarm.peers.remote import Rules
        from swarm.peers.trace import tracing

        remote = network.call(
            session.experts, found, engine.bank, Rules.parse(self.hedge, self.audit, self.keep, fetch=True)
        )
        with tracing(remote, self.trace, say):
            try:
                yield remote
            finally:
                network.call(session.finish, remote)
                self.show(remote)


def say_summary(experts: "RemoteExperts") -> None:
    """A line on standard error about who computed; nothing when no donor was asked."""
    from swarm.cli.output import say
    from swarm.peers.summary import summary

    text = summary(experts)
    if text:
        say(text)
