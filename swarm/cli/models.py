"""`swarm models`: what a swarm serves; and which models this version can run."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from swarm.cli.options import parse_target, swarm_options

if TYPE_CHECKING:
    from swarm.peers.models import ModelInfo


@click.command("models", short_help="List the models of a swarm.")
@swarm_options
@click.option("--offline", is_flag=True, help="List what was accepted on this machine, without any network.")
@click.option("--families", is_flag=True, help="List what this version can run instead; asks no swarm.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def command(
    invite: str | None, tracker: str | None, token: str | None, offline: bool, families: bool, as_json: bool
) -> None:
    """List the models of a swarm."""
    if families:
        if invite or tracker or token or offline:
            raise click.UsageError("--families lists what this version can run; no swarm is asked for it.")
        _print_families(as_json)
        return
    from swarm.cli.joining import joined
    from swarm.cli.output import emit_json, say, table
    from swarm.units import format_bytes

    with joined(parse_target(invite, tracker), token, offline=offline) as (network, session):
        models = network.call(session.models)
        if session.problem:
            end = "" if session.problem.endswith((".", "?")) else "."
            say(f"Offline: {session.problem}{end} Listed is what was accepted on this machine before.")
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
            format_bytes(model.size_bytes),
            str(model.experts or "-"),
            str(model.holders) if session.online else "-",
            _covered(model) if session.online else "-",
            model.operator.hex()[:16],
        )
        for model in models
    ]))  # fmt: skip


def _print_families(as_json: bool) -> None:
    """Families, model types and stored formats, by the engine's own tables."""
    from engine.gguf.architectures import ARCHITECTURES
    from engine.gguf.header import KINDS
    from engine.models import families
    from engine.weights import FORMATS
    from swarm.cli.output import emit_json, table

    known = sorted(families(), key=lambda family: family.name.lower())
    in_gguf = {
        family.name: sorted(
            name for name, found in ARCHITECTURES.items() if found.model_type in family.model_types
        )
        for family in known
    }
    formats = [("safetensors", name, how) for name, how in FORMATS.items()]
    formats += [
        ("gguf", kind.name, "blocks of 32" if kind.values > 1 else "plain") for kind in KINDS.values()
    ]
    if as_json:
        for family in known:
            emit_json({
                "family": family.name,
                "model_types": family.model_types,
                "gguf_architectures": in_gguf[family.name],
                "verified": family.verified,
            })  # fmt: skip
        for files, name, how in formats:
            emit_json({"format": name, "files": files, "stored": how})
        return
    print(table(("FAMILY", "MODEL TYPES", "IN GGUF", "VERIFIED"), [
        (
            family.name,
            ", ".join(family.model_types),
            ", ".join(in_gguf[family.name]) or "-",
            ", ".join(family.verified),
        )
        for family in known
    ]))  # fmt: skip
    print(
        "\nVERIFIED: how the routed experts were stored where logits and tokens were compared with the reference\n"
        "implementation, and computing on two donors with computing here. What the loader reads, GGUF files only\n"
        "of the architectures above:\n"
    )
    print(table(("FILES", "FORMAT", "STORED"), formats))


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
