"""The relay, with real handshakes end to end through it: what passes is ciphertext, fair and bounded."""

import pytest
import trio

from swarm.wire.handshake import KeyChanged, UnknownStatic
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    RELAY_WINDOW_BYTES,
    GetProof,
    PeerRegistered,
    RegisterPeer,
    RelayIncoming,
    RelayListen,
    RelayOpen,
    RelayReady,
)
from swarm.wire.rpc import Buffer, Peer, RemoteError
from tests.tracker.kit import keys
from tests.tracker.relaying import ASKER, HIDDEN, SECRET, read_all, world
from tracker.relay import RelayLimits
from tracker.relayed import RelayEnd, RelayStream, dial_relayed


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
