"""`swarm serve`: one machine serves a model; this is a tracker and a maintainer on one port."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.options import DIRECTORY, SIZE, metrics_option

if TYPE_CHECKING:
    from engine.numerics import Weights
    from swarm.wire.address import Address

INTERRUPTED = 130


@click.command("serve", short_help="Serve a model directory to a swarm.")
@click.option(
    "--model",
    "directory",
    required=True,
    type=DIRECTORY,
    metavar="DIR",
    help="A Hugging Face model's directory, or a GGUF file.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7300, show_default=True, help="0: any free one."
)
@click.option("--listen", metavar="HOST", help="Listen at this address only; by default at all.")
@click.option(
    "--tracker",
    metavar="INVITE|HOST[:PORT]",
    help="Serve in the swarm of this tracker; by default this machine is a tracker itself.",
)
@click.option("--name", metavar="NAME", help="The model's name in the swarm; by default the directory's.")
@click.option("--advertise", metavar="HOST[:PORT]", help="Where others reach this machine, for the invite.")
@click.option(
    "--key",
    "key_file",
    type=DIRECTORY,
    metavar="FILE",
    help="The operator's key; by default this machine's, made on first use.",
)
@click.option(
    "--signed",
    type=DIRECTORY,
    metavar="FILE",
    help="What `swarm key sign` wrote; the key is not needed here.",
)
@click.option(
    "--token", metavar="TOKEN", help="Only those who know this passphrase (or the invite) may join."
)
@click.option("--private", is_flag=True, help="Only those with the invite may join; a token is made once.")
@click.option(
    "--manifest-version",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Sign at least this version, after the record of earlier ones was lost.",
)
@click.option("--lan/--no-lan", default=True, help="Tell the local network of this swarm (the default).")
@click.option("--exec/--no-exec", "execute", default=True, help="Run experts for others, too (the default).")
@click.option(
    "--weights",
    type=click.Choice(["auto", "native", "q8", "q4"]),
    default="auto",
    show_default=True,
    help="Number format in which experts are run for others.",
)
@click.option(
    "--ram", type=SIZE, metavar="SIZE", help="Memory for those experts; by default most of what is free."
)
@metrics_option
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object a line.")
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    port: int,
    listen: str | None,
    tracker: str | None,
    name: str | None,
    advertise: str | None,
    key_file: Path | None,
    signed: Path | None,
    token: str | None,
    private: bool,
    manifest_version: int,
    lan: bool,
    execute: bool,
    weights: "Weights",
    ram: int | None,
    metrics: "Address | None",
    as_json: bool,
) -> None:
    """Serve a model directory to a swarm.

    Checks the model, hashes it (once), signs it with the operator's key and prints an invite, which is all
    that others need: `swarm chat INVITE`.
    """
    import trio

    from swarm.cli.hosting import Place, identity_of, operator_of, secret_of
    from swarm.cli.server import Plan, serve
    from swarm.peers.inspect import inspect
    from swarm.peers.settings import home
    from swarm.peers.signing import load_keyring, read_publication
    from swarm.peers.target import parse_target

    if token is not None and private:
        raise click.UsageError("--token and --private exclude each other.")
    if tracker is not None and private:
        raise click.UsageError(
            "--private is for a tracker of one's own; the other one's invite holds its token."
        )
    if signed is not None and (key_file is not None or name is not None):
        raise click.UsageError("--signed excludes --key and --name: both are in what was signed.")
    paths = home()
    publication = None if signed is None else read_publication(signed)
    operator = operator_of(paths, key_file) if publication is None else None
    if publication is not None:
        name = publication.signed.manifest.name
    join = None if tracker is None else parse_target(tracker, token)
    plan = Plan(
        directory=directory,
        name=name or directory.resolve().name,
        place=Place(listen, port, advertise),
        paths=paths,
        facts=inspect(directory),
        identity=identity_of(paths),
        operator=operator,
        keyring=None if operator is None else load_keyring(key_file or paths.operator_key, operator),
        signed=publication,
        secret=secret_of(paths, token, private) if join is None else join.token,
        least_version=manifest_version,
        execute=execute,
        lan=lan,
        weights=weights,
        expert_ram_bytes=ram,
        metrics=metrics,
        join=join,
    )
    if not trio.run(serve, plan, as_json):
        ctx.exit(INTERRUPTED)
