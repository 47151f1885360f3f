"""What a crowd does to an honest client of a maintainer, and what many clients do to the maintainer's memory.

The maintainer is a process of its own, and so is the crowd; the honest client is this one. They share the
machine. Half of the crowd's connections are idle after a whole handshake, a quarter stall within it, a
quarter ask for a chunk and take the reply a few bytes a second. Whichever the maintainer closes is opened
anew a second later, a slow one in any case when it had its time. They come from several loopback addresses
where the system has them, as from strangers.
"""

import itertools
import math
import random
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio

from swarm.errors import SwarmError
from swarm.peers.bench_process import Helper, helper, tell, until_let_go
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.calls import Shared
from swarm.wire.frames import Kind
from swarm.wire.handshake import Greeter
from swarm.wire.keys import KeyPair
from swarm.wire.limits import Limits
from swarm.wire.messages.data import ReadChunk
from swarm.wire.server import greet
from swarm.wire.stream import GONE, link_of

ROOT = bytes(32)
"""What the maintainers of measurements call their model."""
_MODULE = "swarm.peers.crowd_bench"
_KINDS = ("idle", "stalled", "idle", "slow")
_SOURCES = [f"127.0.0.{last}" for last in range(2, 34)] if sys.platform == "linux" else ["127.0.0.1"]
_OPENING_AT_ONCE = 32
_AGAIN_AFTER_S = 1.0
_SIP_BYTES = 4
_SIP_EVERY_S = 1.0
_SLOW_S = (2.5, 7.5)
"""After some such time a slow one is opened anew: that it was closed cannot be seen before all its bytes were read."""
_SLOW_BUFFER_BYTES = 8 << 10
_LOOK_EVERY_S = 0.25
_TURN_S = 40.0
_CLIENTS_S = 4.0
_SPARE_FILES = 200


class TooFewFiles(SwarmError):
    """The measurement takes {needed} open files a process, and {limit} is the most this one may have. Raise it
    with `ulimit -Hn {needed}` (as root) or ask for fewer --connections."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    connections: int = 2000
    """The crowd's."""
    clients: int = 64
    """Honest ones at the same time, for the memory."""
    reads: int = 400
    """Of one chunk, one after another, in each turn."""


@dataclass(frozen=True)
class Reads:
    """How long reads of 1 MiB took, in seconds."""

    p50_s: float
    p99_s: float
    worst_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Reads":
        """Their percentiles."""
        return cls(float(np.percentile(seconds, 50)), float(np.percentile(seconds, 99)), max(seconds))


@dataclass(frozen=True)
class Turn:
    """The honest client alone and, right after, in the crowd."""

    alone: Reads
    crowded: Reads
    held: dict[str, int]
    """How many connections of each kind the crowd had on average."""
    opened_anew: int
    """How many of the crowd's connections the maintainer closed or refused while the client read."""

    @property
    def ratio(self) -> float:
        """The p99 in the crowd, over that alone."""
        return self.crowded.p99_s / self.alone.p99_s


@dataclass(frozen=True)
class Crowded:
    """What was measured. Peaks are the maintainer's resident bytes; None where the system does not tell."""

    size: Size
    turns: tuple[Turn, ...]
    clients_bytes_per_s: float
    """What the honest clients read together."""
    clients_peak_bytes: int | None
    crowd_peak_bytes: int | None

    @property
    def ratio(self) -> float:
        """The median of the turns'."""
        return statistics.median(turn.ratio for turn in self.turns)


def measure(server: Helper, chunk_count: int, rounds: int, size: Size) -> Crowded:
    """Measures with a maintainer that was just started.

    RuntimeError when a process ends before its time; the errors of `rpc` when the client is turned away.
    """
    asked = [str(server.told["port"]), server.told["key"], str(chunk_count)]
    with helper(_MODULE, "clients", *asked, str(size.clients)) as clients:
        bytes_per_s = clients.told["bytes_per_s"]
    clients_peak_bytes = peak_bytes(server.pid)
    turns = []
    for _ in range(rounds):
        alone = trio.run(_read, server, chunk_count, size.reads)
        with helper(_MODULE, "crowd", *asked, str(size.connections)) as crowd:
            crowded = trio.run(_read, server, chunk_count, size.reads)
            crowd.let_go()
            found = crowd.hear()
        turns.append(Turn(alone, crowded, found["held"], found["opened_anew"]))
        time.sleep(_AGAIN_AFTER_S)  # until the maintainer is rid of them
    return Crowded(size, tuple(turns), bytes_per_s, clients_peak_bytes, peak_bytes(server.pid))


@contextmanager
def room_for_files(size: Size) -> Iterator[None]:
    """Lets this process, and those it starts within the block, have as many files open as it takes.

    TooFewFiles.
    """
    import resource

    needed = 2 * max(size.connections, size.clients) + _SPARE_FILES  # those being closed count too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewFiles(needed=needed, limit=hard)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def peak_bytes(pid: int) -> int | None:
    """The most bytes of memory a process ever had resident; None where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


async def _read(server: Helper, chunk_count: int, reads: int) -> Reads:
    """Chunks at places that are the same every time. A read that outlasts the turn counts as it is."""
    places = np.random.default_rng(1).integers(chunk_count, size=reads)
    address = Address("127.0.0.1", server.told["port"])
    seconds = []
    began = math.nan
    async with rpc.connect(
        address, KeyPair.generate(), expected_key=bytes.fromhex(server.told["key"])
    ) as peer:
        with trio.move_on_after(_TURN_S) as scope:
            for place in places:
                began = time.perf_counter()
                await peer.request(ReadChunk(ROOT, int(place)))
                seconds.append(time.perf_counter() - began)
        if scope.cancelled_caught:
            seconds.append(time.perf_counter() - began)
    return Reads.of(seconds)


class _Crowd:
    """Connections to the maintainer, kept open whatever it does about them."""

    def __init__(self, nursery: trio.Nursery, port: int, key: bytes, chunk_count: int) -> None:
        self.held: Counter[str] = Counter()
        """Those that are open, by kind."""
        self.attempts = 0
        """How often one was opened, with or without success."""
        self._luck = random.Random(1)
        self._tried = trio.Semaphore(0)
        self._nursery = nursery
        self._port = port
        self._key = key
        self._chunk_count = chunk_count
        self._opening = trio.CapacityLimiter(_OPENING_AT_ONCE)

    async def gather(self, connections: int) -> None:
        """Begins; returns when so many were tried to open."""
        for place in range(connections):
            self._nursery.start_soon(self._keep, place)
        for _ in range(connections):
            await self._tried.acquire()

    async def _keep(self, place: int) -> None:
        """Has one connection, of the kind that its place says."""
        while True:
            with suppress(SwarmError, *GONE):  # the maintainer may be rid of it in whatever way it likes
                await self._have(place, _KINDS[place % len(_KINDS)])
            await trio.sleep(_AGAIN_AFTER_S)

    async def _have(self, place: int, kind: str) -> None:
        async with self._opening:
            try:
                stream = await self._connected(place, kind)
                peer = None if kind == "stalled" else await self._greeted(stream, kind)
            finally:
                self.attempts += 1
                self._tried.release()
        self.held[kind] += 1
        try:
            async with stream:
                if peer is None:
                    await stream.send_all(b"SWR")
                    await stream.receive_some(1)
                elif kind == "slow":
                    await peer.send(Kind.REQUEST, 1, ReadChunk(ROOT, place % self._chunk_count))
                    await _sip(stream, self._luck.uniform(*_SLOW_S))
                else:
                    await peer.wait_closed()
        finally:
            self.held[kind] -= 1

    async def _connected(self, place: int, kind: str) -> trio.SocketStream:
        sock = trio.socket.socket()
        try:
            if kind == "slow":  # so that the reply waits at the maintainer, not here
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
            await sock.bind((_SOURCES[place % len(_SOURCES)], 0))
            await sock.connect(("127.0.0.1", self._port))
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(sock)

    async def _greeted(self, stream: trio.SocketStream, kind: str) -> rpc.Peer:
        """A whole handshake. An idle peer is run, so that it answers pings; a slow one's replies stay unread."""
        keys = KeyPair.generate()
        if kind == "idle":
            return await rpc.open_peer(self._nursery, stream, keys, initiator=True, expected_key=self._key)
        greeter = Greeter(keys, initiator=True, expected_key=self._key)
        peer, _ = await greet(link_of(stream), greeter, Shared(Limits()), {}, None)
        return peer


async def _sip(stream: trio.SocketStream, patience_s: float) -> None:
    """Reads as slowly as can be, until the other side closes or must have done so."""
    with trio.move_on_after(patience_s):
        while await stream.receive_some(_SIP_BYTES):  # noqa: ASYNC110 - it is the pace itself
            await trio.sleep(_SIP_EVERY_S)


async def _crowd(port: str, key: str, chunk_count: str, connections: str) -> None:
    samples: list[Counter[str]] = []

    async def look() -> None:
        while True:
            samples.append(crowd.held.copy())
            await trio.sleep(_LOOK_EVERY_S)

    async with trio.open_nursery() as nursery:
        crowd = _Crowd(nursery, int(port), bytes.fromhex(key), int(chunk_count))
        await crowd.gather(int(connections))
        nursery.start_soon(look)
        before = crowd.attempts
        tell(connections=crowd.held.total())
        await until_let_go(nursery)
    held = {kind: round(statistics.mean(sample[kind] for sample in samples)) for kind in sorted(set(_KINDS))}
    tell(held=held, opened_anew=crowd.attempts - before)


async def _clients(port: str, key: str, chunk_count: str, clients: str) -> None:
    """Honest clients that read for some seconds, each as fast as it can."""
    total = 0

    async def read(peer: rpc.Peer, first: int) -> None:
        nonlocal total
        for place in itertools.count(first):
            reply = await peer.request(ReadChunk(ROOT, place % int(chunk_count)))
            total += len(reply.payload)

    address = Address("127.0.0.1", int(port))
    async with trio.open_nursery() as connections:
        peers = [
            await rpc.dial(connections, address, KeyPair.generate(), expected_key=bytes.fromhex(key))
            for _ in range(int(clients))
        ]
        began = trio.current_time()
        with trio.move_on_after(_CLIENTS_S):
            async with trio.open_nursery() as readers:
                for first, peer in enumerate(peers):
                    readers.start_soon(read, peer, first)
        seconds = trio.current_time() - began
        connections.cancel_scope.cancel()
    tell(bytes_per_s=total / seconds)


if __name__ == "__main__":
    ROLES: dict[str, Callable[..., Awaitable[None]]] = {"crowd": _crowd, "clients": _clients}
    trio.run(ROLES[sys.argv[1]], *sys.argv[2:])
