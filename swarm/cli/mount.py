"""`swarm mount`: a model of a swarm as a read-only directory, for any program."""

from pathlib import Path

import click

from swarm.cli.options import DIRECTORY, parse_target, swarm_options


@click.command("mount", short_help="Show a model of a swarm as a read-only directory.")
@click.argument("mountpoint", type=DIRECTORY)
@swarm_options
@click.option("--model", metavar="NAME", help="Which model, where the swarm has several.")
@click.option("--offline", is_flag=True, help="Use what is on this machine, without any network.")
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object a line.")
def command(
    mountpoint: Path,
    invite: str | None,
    tracker: str | None,
    token: str | None,
    model: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Show a model of a swarm as a read-only directory.

    Bytes come when a program first reads them, each MiB verified. Ctrl-C unmounts.
    """
    import trio

    from swarm.cli.joining import where
    from swarm.cli.mounting import serve_mount
    from swarm.peers.settings import home

    target = where(parse_target(invite, tracker), token)
    trio.run(serve_mount, target, home(), mountpoint, model, offline, as_json)
