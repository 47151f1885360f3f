"""How much the relay takes: streams, bytes that wait, and rates."""

import tracemalloc

import pytest
import trio

from swarm.wire.address import Address
from swarm.wire.messages.tracker import (
    RELAY_WINDOW_BYTES,
    RelayClose,
    RelayCredit,
    RelayData,
)
from swarm.wire.rpc import RemoteError
from tests.tracker.kit import keys
from tests.tracker.relaying import ASKER, HIDDEN, read_all, world
from tracker.relay import RelayLimits
from tracker.relayed import BACKLOG, RelayEnd


async def test_streams_have_quotas() -> None:
    async with world(RelayLimits(streams_per_asker=3, streams=5)) as here:
        hidden, asker, other = await here.hidden(), await here.end(ASKER), await here.end(keys(3))
        streams = [await here.pair(hidden, asker) for _ in range(3)]
        with pytest.raises(RemoteError) as caught:
            await asker.open(HIDDEN.key)
        assert caught.value.remote_code == "busy"
        assert caught.value.retry_after_s == 2
        for _ in range(2):
            await here.pair(hidden, other)
        with pytest.raises(RemoteError, match="busy"):
            await other.open(HIDDEN.key)
        for end in streams[0]:
            await end.aclose()
        await here.until_streams(4)
        await here.pair(hidden, asker)


async def test_the_keys_of_one_network_share_a_quota_of_streams() -> None:
    async with world(RelayLimits(streams_per_network=3)) as here:
        hidden = await here.hidden()
        ends = []
        for number in range(3, 6):
            ends.append(await here.end(keys(number)))
            await trio.testing.wait_all_tasks_blocked()
            host = "198.51.8.1" if number == 5 else f"198.51.7.{number}"
            here.callers[keys(number).key].locate(Address(host, 50000))
        first, neighbour, stranger = ends

        async def opened(end: RelayEnd) -> None:
            await end.open(HIDDEN.key)
            await hidden.accept()

        for end in (first, neighbour, first):
            await opened(end)
        for end in (first, neighbour):
            with pytest.raises(RemoteError, match="busy"):
                await end.open(HIDDEN.key)
        await opened(stranger)


async def test_no_network_has_more_streams_than_are_left_for_others() -> None:
    async with world(RelayLimits(streams=6)) as here:
        hidden = await here.hidden()
        ends = []
        for number in range(3, 6):
            ends.append(await here.end(keys(number)))
            await trio.testing.wait_all_tasks_blocked()
            here.callers[keys(number).key].locate(Address(f"198.51.{number}.1", 50000))
        for end, most in zip(ends, (3, 2, 1), strict=True):
            for _ in range(most):
                await end.open(HIDDEN.key)
                await hidden.accept()
            with pytest.raises(RemoteError, match="busy"):
                await end.open(HIDDEN.key)


async def test_who_sends_more_than_it_may_is_reset() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        piece = bytes(1 << 15)
        for _ in range(RELAY_WINDOW_BYTES // len(piece)):
            await asker.peer.notify(RelayData(near.number), piece)
        await asker.peer.notify(RelayData(near.number), b"x")
        with pytest.raises(trio.BrokenResourceError, match="more than it may"):
            await near.receive_some()
        received = bytearray()
        with pytest.raises(trio.BrokenResourceError, match="more than it may"):
            await read_all(far, received)
        assert len(received) <= RELAY_WINDOW_BYTES
        await asker.peer.notify(RelayData(999), b"to nobody")
        await asker.peer.notify(RelayClose(999, reset=True))
        await here.pair(hidden, asker)


async def test_small_pieces_cost_no_more_than_their_bytes() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        content = bytes(range(256)) * (RELAY_WINDOW_BYTES // 256)
        relay, caller = here.tracker.relay, here.callers[ASKER.key]
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for place in range(0, len(content), 16):  # without a pause, as to a connection that takes nothing
            await relay.data(caller, RelayData(near.number), content[place : place + 16])
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before <= RELAY_WINDOW_BYTES * 9 // 8 + 4096
        received = bytearray()
        while len(received) < len(content):
            received += await far.receive_some()
        assert received == content


async def test_small_credits_of_a_fast_sender_wait_in_one_task() -> None:
    async with world(RelayLimits(bytes_per_second=2 * RELAY_WINDOW_BYTES)) as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        here.nursery.start_soon(near.send_all, bytes(3 * RELAY_WINDOW_BYTES))
        received = 0
        while received < 2 * RELAY_WINDOW_BYTES:  # which is all that may pass at once, and more
            received += len(await far.receive_some())
        while here.tracker.relay.relayed_bytes < 2.5 * RELAY_WINDOW_BYTES:  # noqa: ASYNC110
            await trio.sleep(0.01)
        tasks = trio.lowlevel.current_statistics().tasks_living
        first = received + RELAY_WINDOW_BYTES
        for limit in range(first, first + RELAY_WINDOW_BYTES // 4, 32):
            await here.tracker.relay.credit(here.callers[HIDDEN.key], RelayCredit(far.number, limit), b"")
        await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_statistics().tasks_living < tasks + 10


async def test_a_backlog_that_nobody_takes_is_bounded() -> None:
    async with world(RelayLimits(streams_per_asker=100)) as here:
        await here.hidden()
        asker = await here.end(ASKER)
        for _ in range(BACKLOG):
            await asker.open(HIDDEN.key)
        with pytest.raises(RemoteError, match="did not take a relayed stream"):
            await asker.open(HIDDEN.key)


async def test_a_sender_keeps_to_its_rate(autojump_clock: trio.testing.MockClock) -> None:
    async with world(RelayLimits(bytes_per_second=RELAY_WINDOW_BYTES)) as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        started_s = trio.current_time()
        here.nursery.start_soon(near.send_all, bytes(8 * RELAY_WINDOW_BYTES))
        received = 0
        while received < 8 * RELAY_WINDOW_BYTES:
            received += len(await far.receive_some())
        assert 5 <= trio.current_time() - started_s <= 9
