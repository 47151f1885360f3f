"""`swarm key`: the operator's key: show it, hand over to a new one, sign a model away from the server."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.options import DIRECTORY, Whole, source_option

if TYPE_CHECKING:
    from swarm.trust.sources import WebSource

KEY = click.option(
    "--key", "key_file", type=DIRECTORY, metavar="FILE", help="The operator's key; by default this machine's."
)


@click.group("key", short_help="Look after the operator's key.")
def command() -> None:
    """Look after the operator's key, which signs models."""


@command.command()
@click.argument("file", required=False, type=DIRECTORY, metavar="[FILE]")
def new(file: Path | None) -> None:
    """Make an operator's key in FILE, or the one of this machine.

    A key that is there already is kept, and that is an error.
    """
    from swarm.trust.identity import Identity

    path = _path(file)
    made = Identity(Identity.generate().seed)
    made.save(path)
    print(f"{path} holds the new key {made.key.hex()}. Keep a copy offline: nothing replaces a lost key.")


@command.command()
@KEY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(key_file: Path | None, as_json: bool) -> None:
    """Show the public key, and those it succeeded."""
    from swarm.cli.output import emit_json
    from swarm.peers.signing import load_keyring
    from swarm.trust.identity import Identity

    path = _path(key_file)
    keyring = load_keyring(path, Identity.load(path))
    if as_json:
        keys = [{"key": key.hex(), "may_sign": key in keyring.active} for key in keyring.keys]
        emit_json({"path": str(path), "latest": keyring.latest.hex(), "keys": keys})
        return
    for key in keyring.keys:
        print(f"{key.hex()}  {'may sign' if key in keyring.active else 'retired'}")


@command.command()
@click.argument("new", type=DIRECTORY, metavar="NEWFILE")
@KEY
def rotate(new: Path, key_file: Path | None) -> None:
    """Make a key that succeeds the present one.

    NEWFILE and NEWFILE.keyring are written. Serve with --key NEWFILE from then on: whoever knows the present key
    follows. Until `swarm key retire` both may sign.
    """
    from swarm.peers.signing import rotate as hand_over

    keyring = hand_over(_path(key_file), new)
    print(f"{new} holds the new key {keyring.latest.hex()}. Serve with --key {new}.")


@command.command(short_help="Let only the present key sign from now on.")
@KEY
def retire(key_file: Path | None) -> None:
    """Let only the present key sign from now on, and none that it succeeded."""
    from swarm.peers.signing import retire as end

    keyring = end(_path(key_file))
    print(
        f"Only {keyring.latest.hex()} may sign now; who meets this key refuses the {len(keyring.keys) - 1} before it."
    )


@command.command()
@click.option("--model", "directory", required=True, type=DIRECTORY, metavar="DIR", help="The model.")
@KEY
@click.option(
    "--out", required=True, type=DIRECTORY, metavar="FILE", help="Where the signed model is written."
)
@click.option("--name", metavar="NAME", help="The model's name in the swarm; by default the directory's.")
@click.option("--days", type=Whole(1, 3650), default=60, show_default=True, help="How long it counts.")
@click.option(
    "--manifest-version",
    type=Whole(min=1),
    default=1,
    metavar="N",
    help="Sign at least this version.",
)
@source_option
def sign(
    directory: Path,
    key_file: Path | None,
    out: Path,
    name: str | None,
    days: int,
    manifest_version: int,
    sources: "tuple[WebSource, ...]",
) -> None:
    """Sign a model for a server that never sees the key.

    Take FILE to the server: `swarm serve --model DIR --signed FILE`. Its files must be the same, bit for bit.
    """
    import time

    from swarm.cli.output import byte_progress
    from swarm.cli.reports import say_trouble
    from swarm.peers.inspect import inspect
    from swarm.peers.inventory import hash_files, list_files
    from swarm.peers.operator import name_for, publish
    from swarm.peers.settings import home
    from swarm.peers.signing import load_keyring, write_publication
    from swarm.trust.identity import Identity

    path, paths = _path(key_file), home()
    operator = Identity.load(path)
    name = name_for(directory, name)
    facts = inspect(directory)
    say_trouble(facts.trouble, as_json=False)
    with byte_progress(f"Hashing {directory.name}") as show_progress:
        files = hash_files(
            directory, list_files(directory), paths.hashes,
            progress=lambda step: show_progress(step.done_bytes, step.total_bytes, step.path),
        )  # fmt: skip
    publication = publish(
        name, files, facts.experts_in_layer, operator, paths.served,
        now_s=int(time.time()), least_version=manifest_version, keyring=load_keyring(path, operator),
        lifetime_s=days * 86400, sources=sources,
    )  # fmt: skip
    write_publication(out, publication)
    manifest = publication.signed.manifest
    print(f"{out} holds {manifest.name}, version {manifest.version}, signed by {operator.key.hex()[:16]}.")


def _path(key_file: Path | None) -> Path:
    from swarm.peers.settings import home

    return key_file or home().operator_key
