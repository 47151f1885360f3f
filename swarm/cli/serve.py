"""`swarm serve`: one machine serves a model; this is a tracker and a maintainer on one port."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from swarm.cli.options import DIRECTORY, HOST, SIZE, Whole, keys_option, metrics_option, source_option
from swarm.cli.secrets import read_target, secret_option

if TYPE_CHECKING:
    from engine.numerics import Weights
    from swarm.trust.sources import WebSource
    from swarm.wire.address import Address

INTERRUPTED = 130
_OPERATORS = frozenset(
    (
        "tracker",
        "key_file",
        "signed",
        "private",
        "manifest_version",
        "operators",
        "lan",
        "execute",
        "weights",
        "ram",
        "sources",
    )
)
"""Options that say nothing to a further server of somebody else's model."""
_BY_USER = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


@click.command("serve", short_help="Serve a model directory to a swarm.")
@click.option(
    "--model",
    metavar="DIR|NAME",
    help="A Hugging Face model's directory, or a GGUF file; with --join the name of a model will do.",
)
@click.option("--port", type=Whole(0, 65535), default=7300, show_default=True, help="0: any free one.")
@click.option("--listen", type=HOST, metavar="HOST", help="Listen at this address only; by default at all.")
@click.option(
    "--tracker",
    metavar="INVITE|HOST[:PORT]",
    help="Serve in the swarm of this tracker (@FILE: that of the invite in a file); by default this machine is a "
    "tracker itself.",
)
@click.option(
    "--join",
    "joined",
    metavar="INVITE|HOST[:PORT]",
    help="Serve a model that this swarm has already, without its operator's key; @FILE reads the invite from a file.",
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
@secret_option("token", "Only those who know this passphrase (or the invite) may join.", metavar="TOKEN")
@click.option("--private", is_flag=True, help="Only those with the invite may join; a token is made once.")
@click.option(
    "--manifest-version",
    type=Whole(min=1),
    default=1,
    metavar="N",
    help="Sign at least this version, after the record of earlier ones was lost.",
)
@source_option
@keys_option(
    "--operator",
    "operators",
    "Take models of this operator key on this machine's tracker, too (64 hex digits; may be repeated). "
    "Without any, it takes those of its own operator only.",
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
    model: str | None,
    port: int,
    listen: str | None,
    tracker: str | None,
    joined: str | None,
    name: str | None,
    advertise: str | None,
    key_file: Path | None,
    signed: Path | None,
    token: str | None,
    private: bool,
    manifest_version: int,
    sources: "tuple[WebSource, ...]",
    operators: tuple[bytes, ...],
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

    With --join it is a further server of a model that somebody else signed: it fetches all of the model (or
    checks the copy in --model DIR against what was signed), serves it, follows its later versions, and goes
    on when whoever served it first is gone. Experts are run for others by `swarm donate compute`.
    """
    import trio

    if joined is not None:
        _exclude_with_join(ctx)
        if not _serve_joined(joined, token, model, name, listen, port, advertise, metrics, as_json):
            ctx.exit(INTERRUPTED)
        return
    if model is None:
        raise click.MissingParameter(ctx=ctx, param_hint="'--model'", param_type="option")
    directory = Path(model)

    from swarm.cli.hosting import Place, identity_of, operator_of, secret_of
    from swarm.cli.server import Plan, serve
    from swarm.peers.inspect import inspect
    from swarm.peers.operator import name_for
    from swarm.peers.settings import home
    from swarm.peers.signing import load_keyring, read_publication
    from swarm.peers.target import parse_target

    if name is not None and not name.strip():
        raise click.UsageError("--name is empty; leave it out to take the directory's.")
    if token is not None and private:
        raise click.UsageError("--token (or --token-file) and --private exclude each other.")
    if tracker is not None and private:
        raise click.UsageError(
            "--private is for a tracker of one's own; the other one's invite holds its token."
        )
    if tracker is not None and operators:
        raise click.UsageError("--operator is for a tracker of one's own; the other one has its own rules.")
    if signed is not None and (key_file is not None or name is not None or sources):
        raise click.UsageError("--signed excludes --key, --name and --source: all are in what was signed.")
    paths = home()
    publication = None if signed is None else read_publication(signed)
    operator = operator_of(paths, key_file) if publication is None else None
    only = None
    if publication is not None:
        name = publication.signed.manifest.name
        only = {entry.path for entry in publication.signed.manifest.files}
    join = None if tracker is None else parse_target(read_target(tracker), token)
    plan = Plan(
        directory=directory,
        name=name_for(directory, name),
        place=Place(listen, port, advertise),
        paths=paths,
        facts=inspect(directory, only),
        identity=identity_of(paths),
        operator=operator,
        keyring=None if operator is None else load_keyring(key_file or paths.operator_key, operator),
        signed=publication,
        secret=secret_of(paths, token, private) if join is None else join.token,
        least_version=manifest_version,
        sources=sources,
        guests=frozenset(operators),
        execute=execute,
        lan=lan,
        weights=weights,
        expert_ram_bytes=ram,
        metrics=metrics,
        join=join,
    )
    if not trio.run(serve, plan, as_json):
        ctx.exit(INTERRUPTED)


def _exclude_with_join(ctx: click.Context) -> None:
    """A usage error for what only the operator of a model, or its first server, can decide."""
    for parameter in ctx.command.params:
        if parameter.name in _OPERATORS and ctx.get_parameter_source(parameter.name) in _BY_USER:
            raise click.UsageError(f"--join excludes {parameter.opts[0]}, which is for a model of one's own.")


def _serve_joined(
    joined: str,
    token: str | None,
    model: str | None,
    name: str | None,
    listen: str | None,
    port: int,
    advertise: str | None,
    metrics: "Address | None",
    as_json: bool,
) -> bool:
    """Serves a model of another operator's; whether it had begun to when a signal came."""
    import trio

    from swarm.cli.donating import Request, listening_at, serve_whole
    from swarm.peers.target import parse_target

    copy = Path(model) if model is not None and (Path(model).exists() or "/" in model) else None
    wanted = name if copy is not None else model or name
    place = listening_at(listen, port, advertise, relay=False)
    request = Request(parse_target(read_target(joined), token), wanted, place, as_json, metrics)
    return trio.run(serve_whole, request, copy)
