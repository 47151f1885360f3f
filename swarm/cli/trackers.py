"""A running `swarm tracker`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial

import trio

from swarm.cli.hosting import Place, invite_address, listening, open_store, until_signalled
from swarm.cli.output import emit_json
from swarm.peers.metrics import exposed, tracker_samples
from swarm.peers.settings import Home
from swarm.peers.verdict import AskingVerifier, NobodyToAsk
from swarm.trust.identity import Identity
from swarm.trust.invite import Invite
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import PeerKey
from tracker.server import Options, open_tracker


async def run(
    place: Place,
    paths: Home,
    identity: Identity,
    secret: bytes | None,
    operators: frozenset[bytes] | None,
    judges: list[PeerKey],
    metrics: Address | None,
    as_json: bool,
) -> None:
    """Tracks until a signal comes. Raises SwarmError or OSError when it cannot start."""
    async with until_signalled() as ended, trio.open_nursery() as nursery, listening(place) as listeners:
        with closing(open_store(paths, place.port)) as store:
            options = Options(operators=operators)

            @asynccontextmanager
            async def dial(key: PeerKey) -> AsyncIterator[rpc.Peer]:
                entry = tracker.registry.get(key)
                if entry is None or entry.address is None:
                    raise NobodyToAsk()
                async with rpc.connect(entry.address, identity, psk=secret, expected_key=key) as peer:
                    yield peer

            verifier = AskingVerifier(judges, dial) if judges else None
            async with open_tracker(
                identity, store, psk=secret, options=options, verifier=verifier
            ) as tracker:
                answering = partial(rpc.serve, psk=secret)
                addresses = await nursery.start(answering, listeners, identity, tracker.handlers())
                address = invite_address(place, addresses[0].port)
                invite = Invite(address, None, identity.key, secret)
                with exposed(metrics, tracker_samples(tracker)) as scraped:
                    _say(address, invite, scraped, as_json)
                    await ended.wait()
                nursery.cancel_scope.cancel()


def _say(address: Address, invite: Invite, metrics: Address | None, as_json: bool) -> None:
    if as_json:
        emit_json({"event": "tracking", "address": str(address), "invite": str(invite)})
        if metrics is not None:
            emit_json({"event": "metrics", "address": str(metrics)})
        return
    print(f"Tracking at {address}. Invite:\n\n  {invite}\n", flush=True)
    if metrics is not None:
        print(f"Metrics are at http://{metrics}/metrics.", flush=True)
