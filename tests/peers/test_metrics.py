"""Metrics: what is kept is what Prometheus reads, and nothing names a peer."""

import socket
import urllib.request
from contextlib import closing

import pytest
import trio

from swarm.peers.announce import Announcer, Reach, Standing
from swarm.peers.donor import Lending
from swarm.peers.executor import Executor
from swarm.peers.links import Links
from swarm.peers.maintainer import Maintainer
from swarm.peers.metrics import (
    CannotExpose,
    Samples,
    executor_samples,
    exposed,
    lending_samples,
    maintainer_samples,
    standing_samples,
    tracker_samples,
)
from swarm.peers.tracking import TrackerClient
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair
from tracker.server import open_tracker
from tracker.store import MemoryStore

HERE = Address("127.0.0.1", 0)
KEYS = KeyPair(b"\7" * 32)


def scrape(*sources: Samples) -> dict[str, float]:
    """What Prometheus would read."""
    with exposed(HERE, *sources) as place:
        assert place is not None
        with urllib.request.urlopen(f"http://{place}/metrics") as answer:
            text = answer.read().decode()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_maintainer_tells_what_it_served() -> None:
    maintainer = Maintainer()
    maintainer.served.chunks, maintainer.served.bytes, maintainer.served.refused = 3, 3 << 20, 1
    read = scrape(maintainer_samples(maintainer))
    assert read["swarm_chunks_served_total"] == 3
    assert read["swarm_served_bytes_total"] == 3 << 20
    assert read["swarm_chunks_refused_total"] == 1


def test_an_executor_tells_what_it_computed() -> None:
    executor = Executor(KEYS)
    executor.done.calls, executor.paused = 5, True
    executor.done.clients |= {b"a", b"b"}
    read = scrape(executor_samples(executor))
    assert read["swarm_expert_calls_total"] == 5
    assert read["swarm_expert_clients"] == 2
    assert read["swarm_expert_paused"] == 1


async def test_a_tracker_tells_how_many_it_knows() -> None:
    async with open_tracker(KEYS, MemoryStore()) as tracker:
        tracker.registry.register(b"k" * 32, Address("127.0.0.1", 1), None, True, "test", 0.0)
        read = await trio.to_thread.run_sync(scrape, tracker_samples(tracker))
    assert read["swarm_tracker_peers"] == 1
    assert read["swarm_tracker_bans"] == 0


async def test_a_donor_tells_how_it_stands() -> None:
    async with trio.open_nursery() as nursery:
        client = TrackerClient(Links(nursery, KEYS), Address("127.0.0.1", 1), None)
        announcer = Announcer(client, Reach(0), standing=Standing(registered=True))
        lending = Lending(assigned=8, ready=6, resident=4)
        sources = (standing_samples(lambda: announcer), lending_samples(lending))
        read = await trio.to_thread.run_sync(scrape, *sources)
    assert (read["swarm_registered"], read["swarm_reachable"]) == (1, 0)
    assert (read["swarm_donated_assigned"], read["swarm_donated_ready"], read["swarm_donated_resident"]) == (
        8,
        6,
        4,
    )


def test_nobody_is_told_who_was_served() -> None:
    executor = Executor(KEYS)
    executor.done.clients.add(b"\xab" * 32)
    assert not [name for name in scrape(executor_samples(executor)) if "abab" in name]


def test_nothing_is_exposed_unless_asked_for() -> None:
    with exposed(None) as place:
        assert place is None


def test_a_taken_port_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotExpose, match=str(port)), exposed(Address("127.0.0.1", port)):
            pass
