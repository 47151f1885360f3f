"""`swarm cache`: the chunks kept on this machine."""

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from swarm.cli.options import SIZE, swarm_options

if TYPE_CHECKING:
    from mirror.cas import Store
    from mirror.space import Pinned
    from swarm.peers.models import OpenModel
    from swarm.peers.network import NetworkThread
    from swarm.peers.session import Session

PACKED_UNUSED_S = 30 * 24 * 3600.0


@click.group("cache", short_help="Look after the chunks kept on this machine.")
def command() -> None:
    """Look after the chunks kept on this machine.

    Chunks are shared by all models; whatever is removed is fetched again when it is read.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_models(as_json: bool) -> None:
    """Show the models that were used here, and how much of each is here."""
    from engine.packed_cache import used_bytes
    from mirror.cas import Store
    from swarm.cli.output import emit_json, table
    from swarm.peers.kept import take_stock
    from swarm.peers.settings import home, load_remembered
    from swarm.units import format_bytes

    paths = home()
    limit = load_remembered(paths.settings).cache_bytes
    with Store(paths.chunks) as store:
        stock, pinned, read_only = take_stock(paths, store), store.pinned(), store.read_only
    if as_json:
        models = [
            {
                "name": kept.manifest.name,
                "version": kept.manifest.version,
                "operator": kept.remembered.signed.keyring.latest.hex(),
                "bytes": kept.manifest.total_bytes,
                "here_bytes": kept.here_bytes,
                "issued": kept.manifest.issued,
                "expires": kept.manifest.expires,
            }
            for kept in stock.models
        ]
        emit_json({
            "models": models, "used_bytes": stock.used_bytes, "orphan_bytes": stock.orphan_bytes,
            "limit_bytes": limit, "path": str(paths.chunks), "packed_bytes": used_bytes(paths.packed),
            "pinned": _told(pinned), "read_only": read_only,
        })  # fmt: skip
        return
    if stock.models:
        heads = ("MODEL", "VERSION", "HERE", "SIZE", "SIGNED", "OPERATOR")
        print(table(heads, [
            (
                kept.manifest.name,
                str(kept.manifest.version),
                format_bytes(kept.here_bytes),
                format_bytes(kept.manifest.total_bytes),
                str(datetime.fromtimestamp(kept.manifest.issued, UTC).date()),
                kept.remembered.signed.keyring.latest.hex()[:16],
            )
            for kept in stock.models
        ]))  # fmt: skip
    bound = "no limit" if limit is None else f"limit {format_bytes(limit)}"
    only = "; it can only be read" if read_only else ""
    print(f"{format_bytes(stock.used_bytes)} in {paths.chunks} ({bound}{only}).")
    for line in _described(pinned):
        print(line)
    if packed := used_bytes(paths.packed):
        print(f"{format_bytes(packed)} of packed experts in {paths.packed}.")
    if stock.orphan_bytes:
        print(f"{format_bytes(stock.orphan_bytes)} belong to no model in use; `swarm cache gc` removes them.")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def verify(ctx: click.Context, as_json: bool) -> None:
    """Check every chunk against its hash; damaged ones are removed.

    They stay where nothing can be written. Exit code 1 when there were any.
    """
    from mirror.cas import Store
    from swarm.cli.output import byte_progress, emit_json
    from swarm.peers.settings import home
    from swarm.units import format_bytes

    checked = damaged = done = 0
    with Store(home().chunks) as store, byte_progress("Checking") as show:
        total, read_only = store.used_bytes, store.read_only
        for kept, right in store.verify():
            checked += 1
            damaged += not right
            done += kept.bytes
            show(done, max(total, done), "")
    if as_json:
        emit_json({"checked": checked, "damaged": damaged, "bytes": done})
    else:
        gone = (
            "not removed, as the store can only be read"
            if read_only
            else "removed; they are fetched again when they are read"
        )
        found = f"{damaged} damaged, {gone}" if damaged else "all right"
        print(f"{checked} chunks ({format_bytes(done)}): {found}.")
    ctx.exit(1 if damaged else 0)


@command.command(short_help="Remove chunks and packed experts that are not in use.")
@click.option("--all", "everything", is_flag=True, help="Remove every chunk, and all packed experts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def gc(everything: bool, as_json: bool) -> None:
    """Remove the chunks that belong to no model in use, and packed experts that were not used for 30 days.

    What is beyond the limit of `swarm cache limit` goes, too. Chunks that a running donor or server keeps stay; it is
    named.
    """
    from engine.packed_cache import clean
    from mirror.cas import Store
    from swarm.cli.output import emit_json
    from swarm.peers.kept import accepted, addresses
    from swarm.peers.settings import home, load_remembered
    from swarm.units import format_bytes

    paths = home()
    most = load_remembered(paths.settings).cache_bytes
    wanted = set() if everything else addresses(accepted(paths))
    with Store(paths.chunks, limit_bytes=most) as store:
        _check_writable(store)
        freed = store.gc(wanted) + store.trim()
        pinned = store.pinned()
    freed += clean(paths.packed, 0 if everything else PACKED_UNUSED_S)
    if as_json:
        emit_json({"freed_bytes": freed, "pinned": _told(pinned)})
        return
    print(f"{format_bytes(freed)} freed.")
    for line in _described(pinned):
        print(line)


@command.command(short_help="Bound the space for chunks, such as 50GB.")
@click.argument("size", metavar="SIZE|none")
def limit(size: str) -> None:
    """Bound the space for chunks, such as 50GB; `none` takes the bound away.

    When it is reached, what was not used for longest makes room, and so does at once what is beyond it. Programs that
    run already keep the bound they began with.
    """
    from mirror.cas import Store
    from swarm.cli.output import say
    from swarm.peers.settings import home, remember
    from swarm.units import format_bytes

    count = None if size == "none" else SIZE.convert(size, None, None)
    remember(home().settings, cache_bytes=count)
    if count is None:
        say("No limit from now on.")
        return
    with Store(home().chunks, limit_bytes=count) as store:
        _check_writable(store)
        freed, kept, pinned = store.trim(), store.used_bytes, store.pinned()
    say(f"At most {format_bytes(count)} from now on; {format_bytes(freed)} freed.")
    if kept > count:
        say(f"{format_bytes(kept)} are kept still, which is more.")
        for line in _described(pinned):
            say(line)


def _tell_later(network: "NetworkThread", session: "Session", found: "OpenModel") -> None:
    """Says that the swarm has another version by now, if it does: the one that was fetched may be held by nobody."""
    from swarm.cli.output import say
    from swarm.errors import SwarmError
    from swarm.peers.versions import newer

    try:
        later = network.call(newer, session, found, set())
    except SwarmError:  # the fetching says what is wrong
        return
    if later is not None:
        say(
            f"{later.name} has a new version, {later.version}, since this began; fetch again for that one. "
            f"This was version {found.info.version}."
        )


@command.command()
@partial(swarm_options, word="[INVITE|MODEL]")
@click.option("--model", metavar="NAME", help="Which model, where the swarm has several.")
def prefetch(invite: str | None, tracker: str | None, token: str | None, model: str | None) -> None:
    """Fetch all of a model, so that it can be used offline.

    The model may be named without --model, where the swarm is the one used last or that of --tracker.
    """
    from swarm.cli.joining import joined, swarm_or_model
    from swarm.cli.output import byte_progress, say
    from swarm.peers.room import find_room
    from swarm.units import format_bytes

    target, model = swarm_or_model(invite, tracker, token, model)
    with joined(target, token) as (network, session):
        found = network.call(session.open_model, model)
        tree = found.mirror.tree
        before = found.mirror.progress
        room = network.call(find_room, found.mirror, found.described)
        if room.lacking_bytes:
            come, free = format_bytes(room.lacking_bytes), format_bytes(room.disk_bytes)
            say(f"{come} of {found.info.name} are to be fetched; {free} of disk are free.")
        try:
            with byte_progress(f"Fetching {found.info.name}") as show:
                network.call(found.fetch_all, lambda done: show(done, tree.total_bytes, ""))
        finally:
            _tell_later(network, session, found)
        fetched = found.mirror.progress.fetched_bytes - before.fetched_bytes
        say(
            f"{found.info.name} version {found.info.version} is complete here; {format_bytes(fetched)} were fetched."
        )


def _check_writable(store: "Store") -> None:
    """Raises StoreReadOnly."""
    from mirror.errors import StoreReadOnly

    if store.read_only:
        raise StoreReadOnly(root=store.root)


def _told(pinned: "list[Pinned]") -> list[dict[str, object]]:
    return [{"process": one.process, "command": _command(one), "bytes": one.bytes} for one in pinned]


def _described(pinned: "list[Pinned]") -> list[str]:
    """What is pinned by whom, and how to release it: a line each."""
    from swarm.units import format_bytes

    return [
        f"{format_bytes(one.bytes)} of it are kept by process {one.process} ({_command(one)}) for as long as it runs."
        for one in pinned
    ]


def _command(pinned: "Pinned") -> str:
    """The command that pinned something."""
    from swarm.peers import disk, whole

    commands = {disk.PIN: "swarm donate disk", whole.PIN: "swarm serve --join"}
    return commands.get(pinned.name.partition("-")[0], "swarm")
