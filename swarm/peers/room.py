"""Room for a model's bytes on this machine, looked for before they are fetched: a disk that fills up on the way
helps nobody."""

from collections.abc import Iterable

import trio

from mirror.fetch import Mirror
from mirror.room import Room
from mirror.tree import Chunk
from swarm.errors import SwarmError
from swarm.units import format_bytes


class NoRoom(SwarmError):
    """{what} needs {need} more on the disk of {place}, and {free} are free there. Free some space, or some of Swarm's
    own with `swarm cache gc`; {remedy}."""


class LimitTooLow(SwarmError):
    """{what} needs {need} on this machine, and `swarm cache limit` leaves {allowed} for it. Raise that limit, or
    take it away with `swarm cache limit none`; {remedy}."""


async def find_room(
    mirror: Mirror,
    what: str,
    *,
    chunks: Iterable[Chunk] | None = None,
    most_bytes: int | None = None,
    remedy: str = "or set SWARM_HOME to a directory on a larger disk",
) -> Room:
    """The room in a mirror's store for some of its chunks, or all; a part as large as `most_bytes` must fit.

    what: whose bytes they are, for the error; `remedy`: what else would help.

    Raises:
        NoRoom, LimitTooLow: they will not fit, saying what is needed and what there is.
        OSError: the store cannot be looked at.
    """
    tree, store = mirror.tree, mirror.store
    wanted = (tree.chunk(index) for index in range(tree.chunk_count)) if chunks is None else chunks
    room = await trio.to_thread.run_sync(store.room_for, wanted)
    if most_bytes is not None:
        room = room.at_most(most_bytes)
    if room.allowed_bytes is not None and room.wanted_bytes > room.allowed_bytes:
        need, allowed = format_bytes(room.wanted_bytes), format_bytes(room.allowed_bytes)
        raise LimitTooLow(what=what, need=need, allowed=allowed, remedy=remedy)
    if room.lacking_bytes > room.disk_bytes:
        need, free = format_bytes(room.lacking_bytes), format_bytes(room.disk_bytes)
        raise NoRoom(what=what, need=need, place=store.root, free=free, remedy=remedy)
    return room
