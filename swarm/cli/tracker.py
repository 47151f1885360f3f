"""`swarm tracker`: a tracker that serves no model itself."""

from typing import TYPE_CHECKING

import click

from swarm.cli.options import HOST, Whole, keys_option, metrics_option
from swarm.cli.secrets import secret_option

if TYPE_CHECKING:
    from swarm.wire.address import Address


@click.command("tracker", short_help="Run a tracker that serves no model itself.")
@click.option("--port", type=Whole(0, 65535), default=7300, show_default=True, help="0: any free one.")
@click.option("--listen", type=HOST, metavar="HOST", help="Listen at this address only; by default at all.")
@click.option("--advertise", metavar="HOST[:PORT]", help="Where others reach this machine, for the invite.")
@secret_option("token", "Only those who know this passphrase (or the invite) may join.", metavar="TOKEN")
@click.option("--private", is_flag=True, help="Only those with the invite may join; a token is made once.")
@keys_option(
    "--operator", "operators", "Take models of this operator key only (64 hex digits; may be repeated)."
)
@metrics_option
@keys_option(
    "--judge",
    "judges",
    "Let this peer's executor verify proofs against liars (64 hex digits; may be repeated). "
    "Without any, nobody is banned here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object a line.")
def command(
    port: int,
    listen: str | None,
    advertise: str | None,
    token: str | None,
    private: bool,
    operators: tuple[bytes, ...],
    judges: tuple[bytes, ...],
    metrics: "Address | None",
    as_json: bool,
) -> None:
    """Run a tracker that serves no model itself.

    It brings together those who serve models, those who lend disk or compute, and those who chat. It prints
    an invite that all of them take.
    """
    import trio

    from swarm.cli.hosting import Place, identity_of, secret_of
    from swarm.cli.trackers import run
    from swarm.peers.settings import home
    from swarm.wire.keys import PeerKey

    if token is not None and private:
        raise click.UsageError("--token (or --token-file) and --private exclude each other.")
    paths = home()
    place = Place(listen, port, advertise)
    trio.run(
        run,
        place,
        paths,
        identity_of(paths),
        secret_of(paths, token, private),
        frozenset(operators) or None,
        [PeerKey(key) for key in judges],
        metrics,
        as_json,
    )
