"""What `swarm doctor` learns from a tracker: who it is, its clock, and whether it can dial back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from swarm.errors import SwarmError
from swarm.peers.reachable import ask_tracker
from swarm.peers.target import Target
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair
from tracker.clock import SystemClock
from tracker.reach import DialBack
from tracker.server import open_tracker
from tracker.store import MemoryStore

KEYS = KeyPair(b"\5" * 32)


@dataclass(frozen=True)
class Skewed(SystemClock):
    """A clock that goes wrong."""

    ahead_s: float = 0.0

    def unix_s(self) -> float:
        return super().unix_s() + self.ahead_s


@asynccontextmanager
async def tracked(ahead_s: float = 0.0, dial_back: DialBack | None = None) -> AsyncIterator[Address]:
    """A tracker on loopback."""
    listeners = await rpc.listen("127.0.0.1", 0)
    async with (
        trio.open_nursery() as nursery,
        open_tracker(KEYS, MemoryStore(), clock=Skewed(ahead_s), dial_back=dial_back) as tracker,
    ):
        (address,) = await nursery.start(partial(rpc.serve), listeners, KEYS, tracker.handlers())
        yield address
        assert len(tracker.registry) == 0, "it did not leave"
        nursery.cancel_scope.cancel()


async def test_all_is_well_on_one_machine() -> None:
    async with tracked() as address:
        found = await ask_tracker(Target(address, tracker=KEYS.key), 0)
    assert [(finding.subject, finding.state) for finding in found] == [
        ("tracker", "good"),
        ("reachability", "good"),
        ("clocks", "good"),
    ]
    assert found[0].facts["key"] == KEYS.key.hex()


@pytest.mark.parametrize(("ahead_s", "word"), [(3600, "behind"), (-3600, "ahead of")])
async def test_clocks_that_disagree_are_noted(ahead_s: float, word: str) -> None:
    async with tracked(ahead_s) as address:
        clocks = (await ask_tracker(Target(address), 0))[-1]
    assert clocks.state == "note"
    assert f"{word} the tracker" in clocks.text
    assert 3590 < clocks.facts["apart_s"] < 3610


async def test_a_machine_that_lets_nobody_in_is_told_what_to_open() -> None:
    class Filtered(SwarmError):
        """nobody answers there."""

    async def refuse(address: Address, key: bytes) -> None:
        raise Filtered()

    async with tracked(dial_back=refuse) as address:
        reach = (await ask_tracker(Target(address), 0))[1]
    assert reach.state == "note"
    assert not reach.facts["reachable"]
    assert "--advertise" in reach.remedy


async def test_a_port_in_use_is_replaced_for_the_test() -> None:
    async with tracked() as address:
        reach = (await ask_tracker(Target(address), address.port))[1]
    assert reach.state == "good"


async def test_no_tracker_is_a_failure() -> None:
    listeners = await rpc.listen("127.0.0.1", 0)
    (address,) = rpc.addresses_of(listeners)
    for listener in listeners:
        await listener.aclose()
    (finding,) = await ask_tracker(Target(address), 0)
    assert (finding.subject, finding.state) == ("tracker", "bad")


async def test_a_tracker_with_another_key_is_a_failure() -> None:
    async with tracked() as address:
        (finding,) = await ask_tracker(Target(address, tracker=KeyPair(b"\6" * 32).key), 0)
    assert finding.state == "bad"
