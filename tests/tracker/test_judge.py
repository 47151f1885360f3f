"""Judging under load: a report never waits for others', and holds no memory while others are verified."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio

from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import MAX_PROOF_BYTES, LiarJudged, ListBans, ReportLiar
from swarm.wire.rpc import Busy, Limits, RemoteError
from tests.tracker.kit import FakeCaller, HandClock, keys
from tracker.judge import MOST_VERIFYING, MOST_VERIFYING_BYTES, REPORTS_A_NETWORK, Verdict
from tracker.server import Tracker, open_tracker
from tracker.store import MemoryStore

SERVERS_MEMORY = 16 << 20
"""What a server of a model has for payloads, see `swarm.cli.server`."""


@dataclass
class Verifier:
    """Says no, after it was let."""

    may: trio.Event = field(default_factory=trio.Event)
    running: int = 0

    async def __call__(self, accused: PeerKey, root: bytes, profile: bytes, proof: bytes) -> Verdict:
        self.running += 1
        try:
            await self.may.wait()
        finally:
            self.running -= 1
        return Verdict(False, "its answer is right")


@asynccontextmanager
async def judging(verifier: Verifier) -> AsyncIterator[tuple[Tracker, trio.Nursery]]:
    async with (
        open_tracker(keys(0), MemoryStore(), verifier=verifier, clock=HandClock()) as tracker,
        trio.open_nursery() as nursery,
    ):
        with trio.fail_after(20):
            yield tracker, nursery
        nursery.cancel_scope.cancel()


def report(number: int) -> ReportLiar:
    return ReportLiar(keys(number).key, b"r" * 32, b"p" * 32)


async def test_beyond_a_few_reports_at_a_time_the_next_is_turned_away_at_once() -> None:
    verifier = Verifier()
    async with judging(verifier) as (tracker, nursery):
        callers = [FakeCaller(tracker.handlers(), keys(n)) for n in range(1, MOST_VERIFYING + 2)]
        for number, caller in enumerate(callers[:-1]):
            nursery.start_soon(caller.ask, report(number), b"proof")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(50):  # which costs no right to report later
            with pytest.raises(Busy, match="busy; ask again in"):
                await callers[-1].ask(report(99), b"proof")
        verifier.may.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await callers[-1].ask(report(99), b"proof") == (LiarJudged(False, "its answer is right"), b"")


async def test_long_proofs_are_verified_one_at_a_time_and_one_taken_back_makes_room() -> None:
    verifier = Verifier()
    async with judging(verifier) as (tracker, nursery):
        one, other = (FakeCaller(tracker.handlers(), keys(n)) for n in (1, 2))
        scope = trio.CancelScope()

        async def taken_back() -> None:
            with scope:
                await one.ask(report(1), bytes(MOST_VERIFYING_BYTES))

        nursery.start_soon(taken_back)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy):
            await other.ask(report(2), b"x")
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        verifier.may.set()
        await other.ask(report(2), bytes(MOST_VERIFYING_BYTES))


async def test_a_network_reports_so_often() -> None:
    verifier = Verifier()
    verifier.may.set()
    async with judging(verifier) as (tracker, _):
        for number in range(int(REPORTS_A_NETWORK.burst)):
            caller = FakeCaller(tracker.handlers(), keys(number), Address("198.51.7.7", 50000))
            await caller.ask(report(999), bytes([number]))
        neighbour = FakeCaller(tracker.handlers(), keys(500), Address("198.51.7.8", 50000))
        with pytest.raises(Busy):
            await neighbour.ask(report(999), b"one more")
        stranger = FakeCaller(tracker.handlers(), keys(501), Address("198.51.8.8", 50000))
        await stranger.ask(report(999), b"one more")


async def test_reports_being_verified_keep_a_servers_memory_from_nobody() -> None:
    verifier = Verifier()
    async with judging(verifier) as (tracker, nursery):
        listeners = await rpc.listen("127.0.0.1", 0)
        limits = Limits(bytes_in_flight=SERVERS_MEMORY)
        (address,) = await nursery.start(
            partial(rpc.serve, listeners, keys(0), tracker.handlers(), limits=limits)
        )
        refused: list[str] = []

        async def accuse(number: int) -> None:
            async with rpc.connect(address, keys(number)) as peer:
                try:
                    await peer.request(report(number), bytes(MAX_PROOF_BYTES))
                except RemoteError as error:
                    refused.append(error.remote_code)

        for number in range(1, 9):
            nursery.start_soon(accuse, number)
        while len(refused) < 7:  # noqa: ASYNC110 - what comes over sockets has no event to wait for
            await trio.sleep(0.01)
        assert verifier.running == 1
        assert set(refused) == {Busy.code}
        async with rpc.connect(address, keys(20)) as peer:
            await peer.request(ListBans())
            with pytest.raises(RemoteError, match="busy"):
                await peer.request(report(20), bytes(70_000))
