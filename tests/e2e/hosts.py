"""Swarms inside the test's process, for servers that do what no honest one would."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from swarm.peers.announce import Announcer, Reach
from swarm.peers.inspect import inspect
from swarm.peers.inventory import hash_files, list_files
from swarm.peers.links import Links
from swarm.peers.maintainer import ChunkSource, DirectoryChunks, Maintainer
from swarm.peers.network import NetworkThread
from swarm.peers.operator import Publication, publish
from swarm.peers.tracking import TrackerClient
from swarm.trust.invite import Invite
from swarm.wire import rpc
from swarm.wire.keys import KeyPair
from swarm.wire.messages import Message
from tracker.server import open_tracker
from tracker.store import MemoryStore

OPERATOR = KeyPair(b"\1" * 32)
TRACKER = KeyPair(b"\2" * 32)


def honest(source: ChunkSource) -> ChunkSource:
    """Serves what is there."""
    return source


@dataclass(frozen=True)
class Host:
    """A swarm of one process: tracker and maintainer at one address."""

    invite: str
    address: str
    publication: Publication


Wrap = Callable[[rpc.Handler], rpc.Handler]


@asynccontextmanager
async def _hosted(
    model: Path,
    scratch: Path,
    source: Callable[[ChunkSource], ChunkSource],
    twists: Mapping[type[Message], Wrap],
    operator: KeyPair,
    tracker_keys: KeyPair,
    now_s: int,
    port: int,
    name: str,
) -> AsyncIterator[Host]:
    files = hash_files(model, list_files(model), scratch / "hashes")
    layout = inspect(model).experts_in_layer
    publication = publish(name, files, layout, operator, scratch / "served", now_s=now_s)
    maintainer = Maintainer({publication.root: source(DirectoryChunks(model, files))})
    listeners = await rpc.listen("127.0.0.1", port)
    async with trio.open_nursery() as nursery, open_tracker(tracker_keys, MemoryStore()) as tracker:
        handlers = {**tracker.handlers(), **maintainer.handlers()}
        handlers |= {kind: twist(handlers[kind]) for kind, twist in twists.items()}
        (address,) = await nursery.start(partial(rpc.serve), listeners, tracker_keys, handlers)
        client = TrackerClient(Links(nursery, tracker_keys), address, tracker_keys.key)
        held = {publication.root: maintainer.models[publication.root].held}
        await nursery.start(Announcer(client, Reach(address.port, (), True), [publication], held).run)
        yield Host(str(Invite(address, operator.key, tracker_keys.key)), str(address), publication)
        nursery.cancel_scope.cancel()
    for listener in listeners:
        await listener.aclose()


@contextmanager
def hosting(
    model: Path,
    scratch: Path,
    *,
    source: Callable[[ChunkSource], ChunkSource] = honest,
    twists: Mapping[type[Message], Wrap] | None = None,
    operator: KeyPair = OPERATOR,
    tracker: KeyPair = TRACKER,
    now_s: int | None = None,
    port: int = 0,
    name: str = "model",
) -> Iterator[Host]:
    """Serves a model from a thread of this process.

    Args:
        model: Its directory.
        scratch: Where hashes and the last manifest are kept.
        source: What to make of the chunks before they are served.
        twists: Handlers to put around those of tracker and maintainer.
        operator: Who signs.
        tracker: The identity of the process.
        now_s: When the manifest is signed; now, when None.
        port: Where to listen; 0: anywhere.
        name: The model's name.
    """
    with NetworkThread() as network:
        signed_s = int(time.time()) if now_s is None else now_s
        yield network.enter(
            _hosted, model, scratch, source, twists or {}, operator, tracker, signed_s, port, name
        )
