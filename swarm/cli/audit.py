"""`swarm audit show`: read the proof of a wrong answer, and check it."""

from pathlib import Path
from typing import Any

import click

from swarm.cli.options import DIRECTORY, swarm_options


@click.group("audit", short_help="Read the proof of a wrong answer.")
def command() -> None:
    """Read the proof of a wrong answer."""


@command.command("show", short_help="Say what a proof proves, and check it.")
@click.argument("proof", metavar="FILE|DIGEST")
@swarm_options
@click.option(
    "--local", type=DIRECTORY, metavar="DIR", help="The model, to recompute the call from its bytes."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(
    proof: str, invite: str | None, tracker: str | None, token: str | None, local: Path | None, as_json: bool
) -> None:
    """Say what a proof proves, and check it.

    FILE holds a proof; DIGEST names one that was found here, or that the swarm's tracker keeps (see `swarm audit
    bans`). A tracker keeps the latest proofs; a ban stays when its proof is gone. The signature is checked always;
    with --local the call is recomputed, too.
    """
    from swarm.cli.output import emit_json
    from swarm.peers.proof import Proof

    found = Proof.parse(_content(proof, invite, tracker, token))
    found.check_signature()
    facts = _facts(found, local)
    if as_json:
        emit_json(facts)
        return
    print(f"Proof {facts['proof']}")
    verdict = {None: "was not recomputed (give the model with --local)", True: "is wrong", False: "is right"}
    print(
        f"Donor {facts['donor']}\n"
        f"signed, with a signature that holds, an answer for layer {facts['layer']}:\n"
        f"  {facts['pairs']} expert calls, {facts['request_bytes']} bytes asked, "
        f"{facts['reply_bytes']} bytes answered\n"
        f"  model root {facts['root']}\n"
        f"  weights {facts['weights']}, arithmetic version {facts['numerics']}\n"
        f"The answer {verdict[facts['wrong']]}."
    )


@command.command("bans", short_help="List who is banned, and why.")
@swarm_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def bans(invite: str | None, tracker: str | None, token: str | None, as_json: bool) -> None:
    """List who is banned at a swarm's tracker, the digests of the proofs, and who keeps each: this machine (here) or
    the tracker, so that `swarm audit show` can read it, or nobody there any more."""
    from swarm.cli.joining import joined
    from swarm.cli.options import parse_target
    from swarm.cli.output import emit_json, table
    from swarm.peers.settings import home
    from swarm.peers.tracking import list_bans

    with joined(parse_target(invite, tracker), token) as (network, session):
        found = network.call(list_bans, session.tracker)
    keepers = [keeper_of(ban, home().proofs) for ban in found]
    if as_json:
        for ban, keeper in zip(found, keepers, strict=True):
            emit_json(
                {
                    "donor": ban.key.hex(),
                    "reason": ban.reason,
                    "proof": ban.proof.hex(),
                    "kept": keeper or None,
                    "at": ban.unix_s,
                }
            )
        return
    if not found:
        print("Nobody is banned.")
        return
    rows = [
        (ban.key.hex()[:16], ban.proof.hex(), keeper or "no more", ban.reason)
        for ban, keeper in zip(found, keepers, strict=True)
    ]
    print(table(("donor", "proof", "kept", "reason"), rows))


def keeper_of(ban: Any, folder: Path) -> str:
    """Where the proof of a `swarm.wire.messages.tracker.Ban` is read from: "here", "tracker", or "" when nobody keeps
    it. `folder` is where this machine keeps its own. OSError when it cannot be read."""
    from swarm.peers.proofs import kept_proof

    if kept_proof(folder, ban.proof) is not None:
        return "here"
    return "tracker" if ban.kept else ""


def _content(proof: str, invite: str | None, tracker: str | None, token: str | None) -> bytes:
    from swarm.cli.joining import joined
    from swarm.cli.options import parse_target
    from swarm.peers.proofs import kept_proof
    from swarm.peers.settings import home
    from swarm.peers.tracking import get_proof

    path = Path(proof)
    if path.exists():
        return path.read_bytes()
    try:
        digest = bytes.fromhex(proof)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise click.UsageError(f"{proof} is neither a file nor the digest of a proof (64 hex digits).")
    kept = kept_proof(home().proofs, digest)
    if kept is not None:
        return kept
    with joined(parse_target(invite, tracker), token) as (network, session):
        return network.call(get_proof, session.tracker, digest)


def _facts(proof: Any, local: Path | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "proof": proof.digest.hex(),
        "donor": proof.donor.hex(),
        "layer": proof.message.layer,
        "pairs": proof.message.pairs,
        "request_bytes": len(proof.request),
        "reply_bytes": len(proof.reply),
        "root": proof.profile.root.hex(),
        "weights": proof.profile.weights,
        "numerics": proof.profile.numerics,
        "wrong": None,
    }
    if local is not None:
        from engine.source import DirectorySource
        from swarm.peers.banks import open_experts
        from swarm.peers.verdict import recomputed

        with DirectorySource(local) as source:
            facts["wrong"] = recomputed(proof, open_experts(source, proof.profile.weights))
    return facts
