"""`swarm models`: what a swarm serves."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from swarm.cli.options import parse_target, swarm_options

if TYPE_CHECKING:
    from swarm.peers.models import ModelInfo


@click.command("models", short_help="List the models of a swarm.")
@swarm_options
@click.option("--offline", is_flag=True, help="List what was accepted on this machine, without any network.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def command(invite: str | None, tracker: str | None, token: str | None, offline: bool, as_json: bool) -> None:
    """List the models of a swarm."""
    from swarm.cli.joining import joined
    from swarm.cli.output import emit_json, say, size, table

    with joined(parse_target(invite, tracker), token, offline=offline) as (network, session):
        models = network.call(session.models)
        if session.problem:
            say(f"Offline: {session.problem} Listed is what was accepted on this machine before.")
    if as_json:
        for model in models:
            emit_json(_fields(model))
        return
    if not models:
        say("This swarm has no models yet; its operator runs `swarm serve --model DIR`.")
        return
    heads = ("MODEL", "VERSION", "SIZE", "EXPERTS", "HOLDERS", "COVERED", "OPERATOR")
    print(table(heads, [
        (
            model.name,
            str(model.version),
            size(model.size_bytes),
            str(model.experts or "-"),
            str(model.holders) if session.online else "-",
            _covered(model) if session.online else "-",
            model.operator.hex()[:16],
        )
        for model in models
    ]))  # fmt: skip


def _covered(model: "ModelInfo") -> str:
    return "complete" if model.complete else f"{100 * model.covered_chunks // max(model.chunks, 1)} %"


def _fields(model: "ModelInfo") -> dict[str, object]:
    issued = None if model.issued_s is None else datetime.fromtimestamp(model.issued_s, UTC).isoformat()
    return {
        "name": model.name,
        "version": model.version,
        "root": model.root.hex(),
        "operator": model.operator.hex(),
        "bytes": model.size_bytes,
        "chunks": model.chunks,
        "covered_chunks": model.covered_chunks,
        "holders": model.holders,
        "experts": model.experts,
        "accepted_here": model.accepted,
        "issued": issued,
    }
