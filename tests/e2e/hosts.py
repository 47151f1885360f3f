"""Swarms inside the test's process, for servers that do what no honest one would."""

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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
from swarm.trust.sources import parse_source
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


@dataclass(frozen=True)
class Plan:
    """A swarm to be hosted."""

    model: Path
    scratch: Path
    """Where hashes and the last manifest are kept."""
    source: Callable[[ChunkSource], ChunkSource] = honest
    """What to make of the chunks before they are served."""
    twists: Mapping[type[Message], Wrap] = field(default_factory=dict)
    """Handlers to put around those of tracker and maintainer."""
    operator: KeyPair = OPERATOR
    tracker: KeyPair = TRACKER
    now_s: int | None = None
    """When the manifest is signed; None: now."""
    port: int = 0
    name: str = "model"
    sources: tuple[str, ...] = ()
    """Web sources that the manifest names."""


def lasting_port() -> int:
    """A port that is free now and that the system gives to nobody: for a server that comes back to its address."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


@asynccontextmanager
async def hosted(plan: Plan) -> AsyncIterator[Host]:
    """Serves a model from this trio thread."""
    files = hash_files(plan.model, list_files(plan.model), plan.scratch / "hashes")
    layout = inspect(plan.model).experts_in_layer
    now_s = int(time.time()) if plan.now_s is None else plan.now_s
    sources = [parse_source(source) for source in plan.sources]
    publication = publish(
        plan.name, files, layout, plan.operator, plan.scratch / "served", now_s=now_s, sources=sources
    )
    maintainer = Maintainer({publication.root: plan.source(DirectoryChunks(plan.model, files))})
    listeners = await rpc.listen("127.0.0.1", plan.port)
    async with trio.open_nursery() as nursery, open_tracker(plan.tracker, MemoryStore()) as tracker:
        handlers = {**tracker.handlers(), **maintainer.handlers()}
        handlers |= {kind: twist(handlers[kind]) for kind, twist in plan.twists.items()}
        (address,) = await nursery.start(partial(rpc.serve), listeners, plan.tracker, handlers)
        client = TrackerClient(Links(nursery, plan.tracker), address, plan.tracker.key)
        held = {publication.root: maintainer.models[publication.root].held}
        await nursery.start(Announcer(client, Reach(address.port, (), True), [publication], held).run)
        yield Host(str(Invite(address, plan.operator.key, plan.tracker.key)), str(address), publication)
        nursery.cancel_scope.cancel()
    for listener in listeners:
        await listener.aclose()


@contextmanager
def hosting(model: Path, scratch: Path, **changes: Any) -> Iterator[Host]:
    """Serves a model from a thread of this process; `changes` are fields of Plan."""
    with NetworkThread() as network:
        yield network.enter(hosted, Plan(model, scratch, **changes))
