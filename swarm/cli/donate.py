"""`swarm donate`: lend compute or disk to a swarm, for as long as the command runs."""

import os
import signal
import threading
from typing import TYPE_CHECKING

import click

from swarm.cli.options import HOST, SIZE, Whole, metrics_option, parse_target, swarm_options, threads_option

if TYPE_CHECKING:
    from engine.numerics import Weights
    from swarm.wire.address import Address

KINDS = ("compute", "disk")
INTERRUPTED = 130
LEAST_DISK_BYTES = 3_000_000


@click.group("donate", short_help="Lend compute or disk to a swarm.")
def command() -> None:
    """Lend compute or disk to a swarm, for as long as the command runs.

    Ctrl-C leaves cleanly: calls under way are answered, and the tracker is told.
    """


def _end_with_stdin(_ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Ends the donor when standard input does: it belongs to a terminal that may be killed without a word."""
    if not wanted:
        return

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="swarm-stdin", daemon=True).start()


def listening_options(function: "click.decorators.FC") -> "click.decorators.FC":
    """Where a donor listens, and how it reports."""
    for add in reversed(
        (
            click.option("--model", metavar="NAME", help="Which model, where the swarm has several."),
            click.option("--port", type=Whole(0, 65535), default=0, help="By default any free one."),
            click.option(
                "--listen", type=HOST, metavar="HOST", help="Listen at this address only; by default at all."
            ),
            click.option("--advertise", metavar="HOST[:PORT]", help="Where others reach this machine."),
            click.option(
                "--relay",
                is_flag=True,
                help="Be reached through the tracker only, even if there is another way.",
            ),
            metrics_option,
            click.option(
                "--while-stdin", is_flag=True, hidden=True, expose_value=False, callback=_end_with_stdin
            ),
            click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object a line."),
        )
    ):
        function = add(function)
    return function


@command.command("compute", short_help="Run experts for others.")
@swarm_options
@listening_options
@click.option(
    "--experts", default="auto", metavar="auto|N", help="How many experts to hold; auto: what fits."
)
@click.option("--ram", type=SIZE, metavar="SIZE", help="Memory for experts; by default most of what is free.")
@threads_option
@click.option(
    "--weights", type=click.Choice(["auto", "native", "q8", "q4"]), default="auto", show_default=True,
    help="Number format; those who chat must use the same.",
)  # fmt: skip
@click.pass_context
def compute(
    ctx: click.Context,
    invite: str | None,
    tracker: str | None,
    token: str | None,
    model: str | None,
    port: int,
    listen: str | None,
    advertise: str | None,
    relay: bool,
    metrics: "Address | None",
    as_json: bool,
    experts: str,
    ram: int | None,
    weights: "Weights",
) -> None:
    """Run experts for others, at low priority.

    Needs no model: the tracker says which experts are wanted most, and exactly their bytes are fetched.
    """
    import trio

    from swarm.cli.donating import Request, lend_compute, listening_at
    from swarm.cli.joining import where
    from swarm.peers.donor import Offer

    if experts != "auto" and (not experts.isdigit() or not int(experts)):
        raise click.UsageError(f"--experts is auto or a number, not {experts!r}.")
    place = listening_at(listen, port, advertise, relay)
    request = Request(where(parse_target(invite, tracker), token), model, place, as_json, metrics)
    offer = Offer(ram, None if experts == "auto" else int(experts), weights)
    if not trio.run(lend_compute, request, offer):
        ctx.exit(INTERRUPTED)


@command.command("disk", short_help="Keep a part of a model for others.")
@swarm_options
@listening_options
@click.option("--size", type=SIZE, required=True, metavar="SIZE", help="Disk space to lend, such as 20GB.")
@click.pass_context
def disk(
    ctx: click.Context,
    invite: str | None,
    tracker: str | None,
    token: str | None,
    model: str | None,
    port: int,
    listen: str | None,
    advertise: str | None,
    relay: bool,
    metrics: "Address | None",
    as_json: bool,
    size: int,
) -> None:
    """Keep a part of a model for others: the part that fewest hold."""
    import trio

    from swarm.cli.donating import Request, lend_disk, listening_at
    from swarm.cli.joining import where

    if size < LEAST_DISK_BYTES:
        raise click.UsageError(
            "--size must be 3MB at least: a model's bytes come in pieces of a MiB, and keeping them takes room, too."
        )
    place = listening_at(listen, port, advertise, relay)
    request = Request(where(parse_target(invite, tracker), token), model, place, as_json, metrics)
    if not trio.run(lend_disk, request, size):
        ctx.exit(INTERRUPTED)


@command.command("pause", short_help="Let a donor on this machine rest.")
@click.argument("kind", type=click.Choice(KINDS), default="compute")
def pause(kind: str) -> None:
    """Let a donor that runs on this machine rest; it keeps what it holds."""
    from swarm.cli.donating import tell

    tell(kind, paused=True)


@command.command("resume", short_help="Let a paused donor go on.")
@click.argument("kind", type=click.Choice(KINDS), default="compute")
def resume(kind: str) -> None:
    """Let a paused donor on this machine go on."""
    from swarm.cli.donating import tell

    tell(kind, paused=False)
