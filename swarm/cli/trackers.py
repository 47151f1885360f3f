"""A running `swarm tracker`."""

from contextlib import closing
from functools import partial

import trio

from swarm.cli.hosting import Place, invite_address, listening, open_store, until_signalled
from swarm.cli.output import emit_json
from swarm.peers.settings import Home
from swarm.trust.identity import Identity
from swarm.trust.invite import Invite
from swarm.wire import rpc
from tracker.server import Options, open_tracker


async def run(
    place: Place,
    paths: Home,
    identity: Identity,
    secret: bytes | None,
    operators: frozenset[bytes] | None,
    as_json: bool,
) -> None:
    """Tracks until a signal comes. Raises SwarmError or OSError when it cannot start."""
    async with until_signalled() as ended, trio.open_nursery() as nursery, listening(place) as listeners:
        with closing(open_store(paths, place.port)) as store:
            options = Options(operators=operators)
            async with open_tracker(identity, store, psk=secret, options=options) as tracker:
                answering = partial(rpc.serve, psk=secret)
                addresses = await nursery.start(answering, listeners, identity, tracker.handlers())
                address = invite_address(place, addresses[0].port)
                invite = Invite(address, None, identity.key, secret)
                if as_json:
                    emit_json({"event": "tracking", "address": str(address), "invite": str(invite)})
                else:
                    print(f"Tracking at {address}. Invite:\n\n  {invite}\n", flush=True)
                await ended.wait()
                nursery.cancel_scope.cancel()
