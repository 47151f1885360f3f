"""Whether the swarm has a later version of a model than the one that is open."""

from collections.abc import Callable

import trio

from swarm.errors import SwarmError
from swarm.peers.models import ModelInfo, OpenModel
from swarm.peers.session import Session
from swarm.trust.manifest import parse_signed

LOOK_S = 30.0


async def newer(session: Session, model: OpenModel, looked_at: set[bytes]) -> ModelInfo | None:
    """What the swarm has in place of an open model: a later version with other files, signed by its operator.

    Roots in `looked_at` are passed over, and others put there: each is told once. Nothing is accepted or
    opened by that. Raises a SwarmError when a manifest cannot be had or read.
    """
    ours = model.signed
    for info in await session.models() if session.online else ():
        if info.name == model.info.name and info.root not in {ours.manifest.root, *looked_at}:
            content = (await session.tracker.manifest(info.root)).content
            looked_at.add(info.root)
            theirs = await trio.to_thread.run_sync(parse_signed, content)
            later = theirs.manifest.version > ours.manifest.version
            others = theirs.manifest.content != ours.manifest.content
            if later and others and ours.keyring.latest in theirs.keyring.keys:
                return info
    return None


async def watch(session: Session, model: OpenModel, tell: Callable[[ModelInfo], None]) -> None:
    """Tells of every later version of an open model, each once, until cancelled; reaches a swarm that was away
    again."""
    looked_at: set[bytes] = set()
    while True:
        try:
            if not session.online:
                await session.connect()
            later = await newer(session, model, looked_at)
        except (SwarmError, OSError):  # it refuses us now, or our disk does; it is asked again
            later = None
        if later is not None:
            tell(later)
        await trio.sleep(LOOK_S)
