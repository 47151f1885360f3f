"""Whether the swarm has a later version of a model than the one that is open."""

import trio

from swarm.peers.models import ModelInfo, OpenModel
from swarm.peers.session import Session
from swarm.trust.manifest import parse_signed


async def newer(session: Session, model: OpenModel, looked_at: set[bytes]) -> ModelInfo | None:
    """What the swarm has in place of an open model: a later version with other files, signed by its operator.

    Roots in `looked_at` are passed over, and others put there: each is told once. Nothing is accepted or
    opened by that. Raises a SwarmError when a manifest cannot be had or read.
    """
    ours = model.signed
    for info in await session.models() if session.online else ():
        if info.name == model.info.name and info.root not in {ours.manifest.root, *looked_at}:
            looked_at.add(info.root)
            content = (await session.tracker.manifest(info.root)).content
            theirs = await trio.to_thread.run_sync(parse_signed, content)
            later = theirs.manifest.version > ours.manifest.version
            others = theirs.manifest.content != ours.manifest.content
            if later and others and ours.keyring.latest in theirs.keyring.keys:
                return info
    return None
