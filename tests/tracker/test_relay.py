"""The relay, with real handshakes end to end through it: what passes is ciphertext, fair and bounded."""

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.handshake import KeyChanged, UnknownStatic
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    RELAY_WINDOW_BYTES,
    GetProof,
    PeerRegistered,
    Proof,
    RegisterPeer,
    RelayClose,
    RelayCredit,
    RelayData,
    RelayIncoming,
    RelayListen,
    RelayOpen,
    RelayReady,
)
from swarm.wire.rpc import Buffer, Peer, RemoteError
from swarm.wire.server import Server
from tests.tracker.kit import keys
from tracker.clock import SystemClock
from tracker.relay import RelayLimits
from tracker.relayed import BACKLOG, RelayEnd, RelayStream, dial_relayed, serve_relayed
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore

TRACKER, HIDDEN, ASKER = keys(0), keys(1), keys(2)
SECRET = b"nobody but the two of us may read this. "


@dataclass
class World:
    """A tracker and connections to it in memory; `tapped` is everything the relay passed on."""

    tracker: Tracker
    nursery: trio.Nursery
    tapped: bytearray = field(default_factory=bytearray)
    callers: dict[PeerKey, Peer] = field(default_factory=dict)
    """The connections as the tracker sees them."""

    async def connect(
        self, identity: KeyPair, handlers: dict[type[Message], rpc.Handler] | None = None
    ) -> Peer:
        near, far = trio.testing.memory_stream_pair()

        async def tap(caller: Peer, message: RelayData, payload: Buffer) -> None:
            self.tapped += payload
            await self.tracker.relay.data(caller, message, payload)

        offered = {**self.tracker.handlers(), RelayData: tap}

        async def welcome() -> None:
            caller = await rpc.open_peer(self.nursery, far, TRACKER, initiator=False, handlers=offered)
            self.callers[caller.key] = caller

        self.nursery.start_soon(welcome)
        return await rpc.open_peer(
            self.nursery, near, identity, initiator=True, expected_key=TRACKER.key, handlers=handlers
        )

    async def end(self, identity: KeyPair) -> RelayEnd:
        """A connection to the tracker that can open streams."""
        end = RelayEnd()
        end.attach(await self.connect(identity, end.handlers()))
        self.nursery.start_soon(end.run)
        return end

    async def hidden(self, identity: KeyPair = HIDDEN) -> RelayEnd:
        """A registered peer that is reached through the relay only."""
        end = await self.end(identity)
        reply = await end.peer.request(RegisterPeer("hidden", (), 0))
        assert isinstance(reply.message, PeerRegistered)
        assert reply.message.address == ""
        await end.listen(reply.message.generation)
        return end

    async def pair(self, far: RelayEnd, near: RelayEnd) -> tuple[RelayStream, RelayStream]:
        """Both ends of a new stream."""
        stream = await near.open(HIDDEN.key)
        source, other = await far.accept()
        assert source in (ASKER.key, keys(3).key)
        return stream, other

    async def until_streams(self, count: int) -> None:
        """Waits until the relay has forgotten all but so many streams."""
        while self.tracker.relay.streams > count:  # noqa: ASYNC110 - the relay has no event to wait for
            await trio.sleep(0.01)

    async def serve_echo(self, end: RelayEnd, identity: KeyPair = HIDDEN) -> None:
        """Answers every proof asked for with a secret, over streams that come through the relay."""

        async def answer(caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
            return Proof(), SECRET * 1000 + message.digest

        await serve_relayed(end, Server(identity, {GetProof: answer}))


@asynccontextmanager
async def world(limits: RelayLimits | None = None) -> AsyncIterator[World]:
    async def dial_back(address: object, key: PeerKey) -> None:
        raise OSError("nobody can be reached here")

    options = Options(relay=limits or RelayLimits())
    async with (
        open_tracker(
            TRACKER, MemoryStore(), options=options, dial_back=dial_back, clock=SystemClock()
        ) as tracker,
        trio.open_nursery() as nursery,
    ):
        with trio.fail_after(20):
            yield World(tracker, nursery)
        nursery.cancel_scope.cancel()


async def read_all(stream: RelayStream, received: bytearray) -> None:
    """Adds what a stream brings, to its end."""
    async for data in stream:
        received += data


async def test_two_peers_speak_end_to_end_and_the_tracker_reads_nothing() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        here.nursery.start_soon(here.serve_echo, hidden)
        peer = await dial_relayed(here.nursery, asker, HIDDEN.key, ASKER)
        for number in range(20):
            digest = bytes([number]) * 32
            reply = await peer.request(GetProof(digest))
            assert bytes(reply.payload) == SECRET * 1000 + digest
        assert len(here.tapped) > 20 * 1000 * len(SECRET)
        for plain in (SECRET[:16], b"get-proof", b"digest", bytes(32)):
            assert plain not in here.tapped
        assert here.tracker.relay.relayed_bytes == len(here.tapped)


async def test_the_relay_cannot_pose_as_the_peer() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        impostor = keys(66)
        here.nursery.start_soon(here.serve_echo, hidden, impostor)
        with pytest.raises((KeyChanged, UnknownStatic)):
            await dial_relayed(here.nursery, asker, HIDDEN.key, ASKER)
        await here.until_streams(0)


async def test_streams_share_a_connection_and_a_slow_reader_holds_up_nobody() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        slow, slow_far = await here.pair(hidden, asker)
        blocked = trio.Event()

        async def flood() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await slow.send_all(bytes(10 * RELAY_WINDOW_BYTES))
            blocked.set()

        here.nursery.start_soon(flood)
        content = bytes(range(256)) * 4096
        received: dict[int, bytearray] = {}

        async def send(stream: RelayStream) -> None:
            await stream.send_all(content)
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                near, far = await here.pair(hidden, asker)
                nursery.start_soon(send, near)
                nursery.start_soon(read_all, far, received.setdefault(far.number, bytearray()))
        assert [bytes(data) for data in received.values()] == [content] * 8
        assert slow.outgoing.sent == RELAY_WINDOW_BYTES
        await slow.aclose()
        await blocked.wait()
        await slow_far.aclose()


async def test_bytes_sent_before_the_end_arrive_and_nothing_is_left_behind() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        await near.send_all(b"first ")
        await near.send_all(b"last")
        await near.aclose()
        received = bytearray()
        await read_all(far, received)
        assert received == b"first last"
        assert await far.receive_some() == b""
        await far.aclose()
        await here.until_streams(0)
        with pytest.raises(trio.ClosedResourceError):
            await near.send_all(b"more")
        with pytest.raises(trio.ClosedResourceError):
            await far.receive_some()


async def test_writing_to_who_does_not_read_any_more_breaks() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        await far.aclose()
        with pytest.raises(trio.BrokenResourceError, match="nobody reads here"):
            await near.send_all(bytes(2 * RELAY_WINDOW_BYTES))


async def test_a_lost_connection_breaks_its_streams_and_is_named() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        assert here.tracker.relay.reaches(HIDDEN.key)
        hidden.peer.drop("the cable was pulled")
        with pytest.raises(trio.BrokenResourceError, match="lost"):
            await near.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="was lost"):
            await far.receive_some()
        with pytest.raises(trio.EndOfChannel):
            await hidden.accept()
        assert not here.tracker.relay.reaches(HIDDEN.key)
        with pytest.raises(RemoteError, match="ask the tracker for its holders again"):
            await asker.open(HIDDEN.key)
        again = await here.hidden()
        await here.pair(again, asker)


async def test_a_peer_that_leaves_or_is_forgotten_loses_its_streams() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, _ = await here.pair(hidden, asker)
        here.tracker.forget(HIDDEN.key)
        with pytest.raises(trio.BrokenResourceError, match="the peer left"):
            await near.receive_some()
        assert not here.tracker.relay.reaches(HIDDEN.key)


async def test_requests_that_make_no_sense_are_refused_by_name() -> None:
    async with world() as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        await here.pair(hidden, asker)
        for number in (1, 2, 0):
            with pytest.raises(RemoteError, match="must be odd and higher"):
                await asker.peer.request(RelayOpen(number, HIDDEN.key))
        with pytest.raises(RemoteError, match="register again"):
            await asker.peer.request(RelayListen(5))
        with pytest.raises(RemoteError, match="keeps no connection"):
            await asker.open(keys(77).key)


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


async def test_a_peer_that_does_not_answer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with world() as here:

        async def never(caller: Peer, message: RelayIncoming, payload: Buffer) -> tuple[RelayReady, bytes]:
            await trio.sleep_forever()
            raise AssertionError

        frozen = await here.connect(HIDDEN, {RelayIncoming: never})
        reply = await frozen.request(RegisterPeer("frozen", (), 0))
        assert isinstance(reply.message, PeerRegistered)
        await frozen.request(RelayListen(reply.message.generation))
        asker = await here.end(ASKER)
        with pytest.raises(RemoteError, match="did not answer within 10 s"):
            await asker.open(HIDDEN.key)
        assert here.tracker.relay.streams == 0


async def test_a_stream_that_its_asker_gave_up_is_reset(autojump_clock: trio.testing.MockClock) -> None:
    async with world() as here:
        end = RelayEnd()
        handlers = end.handlers()
        take = handlers[RelayIncoming]

        async def slowly(
            caller: Peer, message: RelayIncoming, payload: Buffer
        ) -> tuple[Message, Buffer] | None:
            taken = await take(caller, message, payload)
            await trio.sleep(3)
            return taken

        end.attach(await here.connect(HIDDEN, {**handlers, RelayIncoming: slowly}))
        reply = await end.peer.request(RegisterPeer("slow", (), 0))
        assert isinstance(reply.message, PeerRegistered)
        await end.listen(reply.message.generation)
        asker = await here.end(ASKER)
        with trio.move_on_after(1):
            await asker.open(HIDDEN.key)
        _, stream = await end.accept()
        with pytest.raises(trio.BrokenResourceError, match="nobody waits"):
            await stream.receive_some()
        assert here.tracker.relay.streams == 0


async def test_a_silent_stream_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with world(RelayLimits(silence_s=8)) as here:
        hidden, asker = await here.hidden(), await here.end(ASKER)
        near, far = await here.pair(hidden, asker)
        await trio.sleep(5)
        await near.send_all(b"still here")
        await trio.sleep(5)
        assert await far.receive_some() == b"still here"
        with pytest.raises(trio.BrokenResourceError, match="silent for too long"):
            await far.receive_some()


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
