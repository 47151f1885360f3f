"""Many at a time, or one that takes all it can: handshakes, connections and memory stay for others."""

import os
from typing import Any

import pytest
import trio
import trio.testing

from swarm.wire.address import Address
from swarm.wire.answers import Answers
from swarm.wire.calls import Busy, Shared
from swarm.wire.connection import Connection, Received
from swarm.wire.frames import Head, Kind
from swarm.wire.handshake import Greeter, HandshakeFailed, TurnedAway
from swarm.wire.messages import Message, Ping
from swarm.wire.outbox import HIGH_WATER_PIECES
from swarm.wire.pings import MOST_PONGS_WAITING
from swarm.wire.race import plain_errors
from swarm.wire.rpc import ConnectionLost, Limits, Peer, addresses_of, connect, listen, open_peer, serve
from swarm.wire.server import Server
from tests.wire.raw import frame, raw_caller
from tests.wire.support import CALLER, ECHO, SERVER, STRANGER, Answer, Ask, Unheard

pytestmark = pytest.mark.usefixtures("quiet", "nothing_failed_inside")


async def test_unfinished_handshakes_make_room_for_others(autojump_clock: Any) -> None:
    server = Server(SERVER, ECHO, limits=Limits(handshakes=8))
    async with plain_errors() as nursery:
        mute = []
        for _ in range(30):
            here, there = trio.testing.memory_stream_pair()
            mute.append(here)
            nursery.start_soon(server.welcome, there)
        await trio.testing.wait_all_tasks_blocked()
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(server.welcome, there)
        started = trio.current_time()
        peer = await open_peer(nursery, here, CALLER, initiator=True)
        assert (await peer.request(Ask(1))).message == Answer(1)
        assert trio.current_time() - started < 1
        nursery.cancel_scope.cancel()


async def test_a_slow_handshake_is_not_given_up_for_a_flood_from_elsewhere(autojump_clock: Any) -> None:
    server = Server(SERVER, ECHO, limits=Limits(handshakes=8))
    async with plain_errors() as nursery:
        here, there = trio.testing.memory_stream_pair()
        nursery.start_soon(server.welcome, there, Address("10.0.0.1", 1))
        await trio.testing.wait_all_tasks_blocked()
        mute = []
        for port in range(30):
            mine, theirs = trio.testing.memory_stream_pair()
            mute.append(mine)
            nursery.start_soon(server.welcome, theirs, Address("10.0.0.2", port))
        await trio.testing.wait_all_tasks_blocked()
        peer = await open_peer(nursery, here, CALLER, initiator=True)
        assert (await peer.request(Ask(1))).message == Answer(1)
        nursery.cancel_scope.cancel()


async def test_one_source_has_so_many_connections() -> None:
    listeners = await listen("127.0.0.1", 0)
    name = listeners[0].socket.getsockname()
    address = Address(name[0], name[1])
    server = Server(SERVER, ECHO, limits=Limits(connections_per_source=2))
    async with plain_errors() as nursery:
        nursery.start_soon(trio.serve_listeners, server.welcome, listeners)
        async with connect(address, CALLER), connect(address, STRANGER) as second:
            with pytest.raises((TurnedAway, HandshakeFailed)):
                async with connect(address, CALLER):
                    raise AssertionError
            assert (await second.request(Ask(1))).message == Answer(1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with connect(address, CALLER) as peer:
            await peer.request(Ask(1))
        nursery.cancel_scope.cancel()


async def test_a_machine_with_many_addresses_is_one_source() -> None:
    server = Server(SERVER, ECHO, limits=Limits(connections_per_source=2))
    async with plain_errors() as nursery:
        ours = []
        for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"):
            mine, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.welcome, theirs, Address(host, 5000))
            await trio.testing.wait_all_tasks_blocked()
            ours.append(mine)
        for number in (0, 1, 3):
            await open_peer(nursery, ours[number], CALLER, initiator=True)
        with pytest.raises((TurnedAway, HandshakeFailed)):
            await open_peer(nursery, ours[2], CALLER, initiator=True)
        nursery.cancel_scope.cancel()


async def test_who_leaves_while_it_is_refused_does_not_end_the_server() -> None:
    listeners = await listen("127.0.0.1", 0)
    address = addresses_of(listeners)[0]
    async with plain_errors() as nursery:
        await nursery.start(serve, listeners, SERVER, ECHO)
        stream = await trio.open_tcp_stream(address.host, address.port)
        machine = Connection(Greeter(STRANGER, initiator=True))
        await stream.send_all(machine.start())
        while machine.session is None:
            machine.receive(await stream.receive_some(65536))
            await stream.send_all(machine.output())
        refused = b"".join(frame(machine, Kind.REQUEST, number, Unheard()) for number in range(1, 200))
        os.write(stream.socket.fileno(), refused)
        stream.socket.close()  # before any of it is read, so that the second refusal meets a closed port
        async with connect(address, CALLER) as peer:
            assert (await peer.request(Ask(1))).message == Answer(1)
        nursery.cancel_scope.cancel()


async def test_who_takes_no_pongs_gets_few_until_it_does(autojump_clock: Any) -> None:
    async with raw_caller(pair=trio.testing.lockstep_stream_pair) as (stream, connection, _):
        pongs: list[int] = []
        for pings in (range(1, 1001), range(1001, 1002)):
            for number in pings:
                await stream.send_all(frame(connection, Kind.NOTICE, number, Ping()))
            with trio.move_on_after(1):
                while True:
                    events = connection.receive(await stream.receive_some(65536))
                    pongs += [event.head.id for event in events if isinstance(event, Received)]
        assert len(pongs) <= MOST_PONGS_WAITING + 2
        assert pongs[-1] == 1001


async def test_who_takes_no_refusals_is_not_read_further(autojump_clock: Any) -> None:
    sent = 0
    async with raw_caller(pair=trio.testing.lockstep_stream_pair) as (stream, connection, _):
        with trio.move_on_after(1):
            while sent < 10 * HIGH_WATER_PIECES:
                await stream.send_all(frame(connection, Kind.REQUEST, sent + 1, Unheard()))
                sent += 1
    assert HIGH_WATER_PIECES <= sent <= HIGH_WATER_PIECES + 10


class Leaving:
    """A peer whose connection ends while a reply waits to leave."""

    name = "leaving"
    sent_bytes = 0

    async def send(self, kind: Kind, id: int, message: Message, payload: Any = b"") -> None:
        await trio.lowlevel.checkpoint()
        raise ConnectionLost(peer=self.name, reason="it left")


async def test_who_leaves_while_a_failure_waits_to_be_told_does_not_end_the_server() -> None:
    async def fail(caller: Peer, message: Ask, payload: Any) -> None:
        raise Busy(what="This test", retry_after_s=1)

    answers = Answers(Leaving(), {Ask: fail}, Shared(Limits()))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await answers.take(nursery, Head(Kind.REQUEST, 1, Ask(1), 0), b"", None)


async def test_who_hoards_memory_by_not_taking_replies_loses_it_to_others() -> None:
    """Two that take nothing hold all memory for replies; an honest one is served all the same."""

    async def big(caller: Peer, message: Ask, payload: Any) -> tuple[Message, Any]:
        return Answer(message.number), bytes(1 << 20)

    listeners = await listen("127.0.0.1", 0)
    name = listeners[0].socket.getsockname()
    server = Server(SERVER, {Ask: big}, limits=Limits(bytes_in_flight=8 << 20))
    async with plain_errors() as nursery:
        nursery.start_soon(trio.serve_listeners, server.welcome, listeners)
        hoarders = []
        for _ in range(2):
            stream = await trio.open_tcp_stream(name[0], name[1])
            machine = Connection(Greeter(STRANGER, initiator=True))
            await stream.send_all(machine.start())
            while machine.session is None:
                machine.receive(await stream.receive_some(65536))
                await stream.send_all(machine.output())
            for number in range(1, 30):
                await stream.send_all(frame(machine, Kind.REQUEST, number, Ask(number)))
            hoarders.append(stream)
        await trio.testing.wait_all_tasks_blocked(0.2)
        with trio.fail_after(20):
            async with connect(Address(name[0], name[1]), CALLER) as peer:
                for number in range(5):
                    assert len((await peer.request(Ask(number))).payload) == 1 << 20
        for stream in hoarders:
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
