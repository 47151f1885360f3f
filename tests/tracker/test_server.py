"""The tracker's handlers, asked directly: registering, holding, finding, assigning, publishing, judging."""

import pytest
import trio

from swarm.wire import cbor
from swarm.wire.holdings import IndexSet
from swarm.wire.messages import BadMessage, encode_fields
from swarm.wire.messages.tracker import (
    AssignChunks,
    Assigned,
    AssignExperts,
    ChunkHolders,
    Contact,
    ExpertHolders,
    FindChunks,
    FindExperts,
    Heartbeat,
    HeartbeatSeen,
    HoldChunks,
    HoldExperts,
    LeaveSwarm,
    ListModels,
    Models,
    PeerRegistered,
    ReachTried,
    RegisterPeer,
    TryReach,
    split_parts,
)
from swarm.wire.rpc import Busy
from tests.tracker.kit import keys, manifest, published
from tests.tracker.world import HERE, PROFILE, find, hold, hold_experts, world
from tracker import answers
from tracker.answers import HoldingsOutOfStep
from tracker.quota import Rate
from tracker.registry import Limits, NotRegistered
from tracker.server import SWEEP_S, Options


async def test_a_peer_that_answers_the_dial_back_is_published() -> None:
    async with world() as here:
        reply, _ = await here.caller(1).ask(RegisterPeer("test", (), 7300))
        assert isinstance(reply, PeerRegistered)
        assert reply.address == "198.51.0.2:7300"
        assert reply.observed == "198.51.0.2:50000"
        assert reply.obstacle == ""
        assert reply.heartbeat_ms < reply.lifetime_ms


async def test_a_peer_that_cannot_be_reached_is_told_so() -> None:
    async with world(answering=lambda address, key: False) as here:
        reply, _ = await here.caller(1).ask(RegisterPeer("test", ("127.0.0.1:7300", "10.0.0.1"), 7300))
        assert isinstance(reply, PeerRegistered)
        assert reply.address == ""
        assert "198.51.0.2:7300 cannot be reached: nobody answers" in reply.obstacle
        assert "it is a loopback address" in reply.obstacle
        assert "10.0.0.1:7300 was not tried: it is private" in reply.obstacle


async def test_a_peer_may_have_it_tried_again_as_often_as_it_may_register() -> None:
    open_ports: set[int] = set()
    options = Options(registrations_a_key=Rate(0.1, 4))
    async with world(options, answering=lambda address, key: address.port in open_ports) as here:
        caller, generation = await here.peer(1)
        with pytest.raises(NotRegistered):
            await caller.ask(TryReach(generation + 1, (), 7300))
        open_ports.add(7300)
        reply, _ = await caller.ask(TryReach(generation, (), 7300))
        assert reply == ReachTried("198.51.0.2:7300", "")
        assert here.tracker.registry.contact(caller.key, False, False) == Contact(
            caller.key, "198.51.0.2", 7300, False
        )
        open_ports.clear()
        reply, _ = await caller.ask(TryReach(generation, ("10.0.0.1",), 7300))
        assert isinstance(reply, ReachTried)
        assert "nobody answers" in reply.obstacle
        assert "10.0.0.1:7300 was not tried: it is private" in reply.obstacle
        assert here.tracker.registry.contact(caller.key, False, False) is None
        await caller.ask(TryReach(generation, (), 7300))
        with pytest.raises(Busy):
            await caller.ask(TryReach(generation, (), 7300))


async def test_the_advertised_address_wins_when_it_answers() -> None:
    async with world(answering=lambda address, key: address.port == 99) as here:
        reply, _ = await here.caller(1).ask(RegisterPeer("test", ("198.51.77.9:99",), 7300))
        assert isinstance(reply, PeerRegistered)
        assert reply.address == "198.51.77.9:99"


async def test_holders_are_found_with_exactly_what_they_hold() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        one, first = await here.peer(1)
        two, second = await here.peer(2)
        await hold(one, first, root, IndexSet.full(100))
        await hold(two, second, root, IndexSet.from_ranges([(10, 20), (50, 51)]))
        contacts = [
            Contact(caller.key, caller.address.host, 7300, False) for caller in (one, two) if caller.address
        ]
        assert await find(here.caller(3), root) == {
            contacts[0]: IndexSet.full(100),
            contacts[1]: IndexSet.from_ranges([(10, 20), (50, 51)]),
        }
        assert await find(here.caller(3), root, IndexSet.of([15, 16, 90]).encode()) == {
            contacts[0]: IndexSet.of([15, 16, 90]),
            contacts[1]: IndexSet.of([15, 16]),
        }
        assert list(await find(one, root)) == [contacts[1]]


async def test_changes_travel_as_deltas_in_step() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        peer, generation = await here.peer(1)
        await hold(peer, generation, root, IndexSet.from_ranges([(0, 10)]), revision=4)
        added, removed = IndexSet.of([50]).encode(), IndexSet.of([0, 1]).encode()
        change = HoldChunks(generation, 5, 4, root, (len(added), len(removed)))
        await peer.ask(change, added + removed)
        assert set((await find(here.caller(2), root)).values()) == {IndexSet.of([*range(2, 10), 50])}
        with pytest.raises(HoldingsOutOfStep, match="send the whole set"):
            await peer.ask(change, added + removed)
        with pytest.raises(BadMessage, match="a change has two sets"):
            await peer.ask(HoldChunks(generation, 6, 5, root, (len(added),)), added)


async def test_heartbeats_are_small_and_ask_for_what_is_missing() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        peer, generation = await here.peer(1)
        await hold(peer, generation, root, IndexSet.of([1]), revision=7)
        reply, _ = await peer.ask(Heartbeat(generation, 0, 7))
        assert isinstance(reply, HeartbeatSeen)
        assert not reply.resend
        assert (reply.models, reply.bans, reply.departures) == (1, 0, 0)
        reply, _ = await peer.ask(Heartbeat(generation, 1, 8))
        assert isinstance(reply, HeartbeatSeen)
        assert reply.resend


async def test_silence_ends_a_peer_and_a_restart_replaces_it(autojump_clock: trio.testing.MockClock) -> None:
    async with world(Options(limits=Limits(lifetime_s=60))) as here:
        root = (await here.publish(published())).root
        one, first = await here.peer(1)
        two, second = await here.peer(2)
        await hold(one, first, root, IndexSet.full(100))
        await hold(two, second, root, IndexSet.full(100))
        again, third = await here.peer(1)
        assert len(await find(here.caller(3), root)) == 1
        with pytest.raises(NotRegistered):
            await one.ask(Heartbeat(first, 5, 0))
        await hold(again, third, root, IndexSet.full(100))
        here.clock.now_s = 50
        await again.ask(Heartbeat(third, 0, 1))
        here.clock.now_s = 61
        await trio.sleep(SWEEP_S + 1)
        assert [contact.key for contact in await find(here.caller(3), root)] == [again.key]
        reply, _ = await again.ask(Heartbeat(third, 1, 1))
        assert isinstance(reply, HeartbeatSeen)
        assert reply.departures == 1


async def test_who_leaves_is_forgotten_at_once() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        peer, generation = await here.peer(1)
        await hold(peer, generation, root, IndexSet.full(100))
        await peer.ask(LeaveSwarm(generation))
        assert await find(here.caller(2), root) == {}
        with pytest.raises(NotRegistered):
            await peer.ask(LeaveSwarm(generation))


async def test_loopback_peers_are_named_by_who_asks() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        peer, generation = await here.peer(1, HERE)
        await hold(peer, generation, root, IndexSet.full(100))
        assert list(await find(here.caller(2, HERE), root)) == [Contact(peer.key, "127.0.0.1", 7300, False)]
        assert list(await find(here.caller(2), root)) == [Contact(peer.key, "", 7300, False)]


async def test_unreachable_peers_are_left_out_and_the_answer_says_it_was_cut() -> None:
    async with world(answering=lambda address, key: key != keys(1).key) as here:
        root = (await here.publish(published())).root
        hidden, first = await here.peer(1)
        seen, second = await here.peer(2)
        await hold(hidden, first, root, IndexSet.of([1, 2]))
        await hold(seen, second, root, IndexSet.of([2]))
        reply, _ = await here.caller(3).ask(FindChunks(root), b"")
        assert isinstance(reply, ChunkHolders)
        assert [holder.contact.key for holder in reply.holders] == [seen.key]
        assert reply.cut


async def test_a_peer_whose_connection_ended_is_named_only_when_nobody_else_is_there() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        lost, first = await here.peer(1)
        sure, second = await here.peer(2)
        await hold(lost, first, root, IndexSet.of([1, 2]))
        await hold(sure, second, root, IndexSet.of([2, 3]))
        lost.gone.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [c.key for c in await find(here.caller(3), root, IndexSet.of([2, 3]).encode())] == [sure.key]
        assert {c.key for c in await find(here.caller(3), root)} == {sure.key, lost.key}
        await here.caller(1).ask(Heartbeat(first, 0, 1))
        assert len(await find(here.caller(3), root, IndexSet.of([2]).encode())) == 2
        here.clock.now_s = 1.3 * 20
        await here.caller(2).ask(Heartbeat(second, 0, 1))
        assert [c.key for c in await find(here.caller(3), root, IndexSet.of([2]).encode())] == [sure.key]


async def test_an_answer_too_long_for_one_message_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        scattered = IndexSet.of(range(0, 100, 2))
        for number in range(1, 6):
            peer, generation = await here.peer(number)
            await hold(peer, generation, root, scattered)
            await hold_experts(peer, generation, root, IndexSet.full(32), IndexSet())
        room = 2 * len(scattered.encode())
        monkeypatch.setattr(answers, "MAX_HOLDERS_BYTES", room)
        reply, payload = await here.caller(9).ask(FindChunks(root))
        assert isinstance(reply, ChunkHolders)
        assert (len(reply.holders), reply.cut, len(payload)) == (2, True, room)
        monkeypatch.setattr(answers, "MAX_HOLDERS_BYTES", 4)
        reply, payload = await here.caller(9).ask(FindExperts(root, PROFILE))
        assert isinstance(reply, ExpertHolders)
        assert (len(reply.holders), reply.cut) == (1, True)


async def test_experts_are_found_with_readiness_residency_and_figures() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        donor, first = await here.peer(1)
        server, second = await here.peer(2)
        await hold_experts(donor, first, root, IndexSet.of([0, 1, 31]), IndexSet.of([31]))
        await hold_experts(server, second, root, IndexSet.full(32), IndexSet(), last_resort=True)
        await donor.ask(Heartbeat(first, 0, 1, service_us=1500, queue=3))
        reply, payload = await here.caller(3).ask(FindExperts(root, PROFILE), b"")
        assert isinstance(reply, ExpertHolders)
        assert not reply.cut
        lengths = [length for h in reply.holders for length in (h.ready_bytes, h.resident_bytes)]
        sets = [IndexSet.decode(part) for part in split_parts(payload, lengths, reply.kind)]
        found = {h.contact.key: (h, *sets[2 * i : 2 * i + 2]) for i, h in enumerate(reply.holders)}
        mine, ready, resident = found[donor.key]
        assert (mine.service_us, mine.queue, mine.last_resort) == (1500, 3, False)
        assert (ready, resident) == (IndexSet.of([0, 1, 31]), IndexSet.of([31]))
        assert found[server.key][0].last_resort
        narrow, payload = await here.caller(3).ask(FindExperts(root, PROFILE), IndexSet.of([1]).encode())
        assert isinstance(narrow, ExpertHolders)
        lengths = [length for h in narrow.holders for length in (h.ready_bytes, h.resident_bytes)]
        sets = [IndexSet.decode(part) for part in split_parts(payload, lengths, narrow.kind)]
        assert sets == [IndexSet.of([1]), IndexSet()] * 2
        other, _ = await here.caller(3).ask(FindExperts(root, b"q" * 32), b"")
        assert isinstance(other, ExpertHolders)
        assert other.holders == ()


async def test_assignments_complement_each_other_and_come_back_the_same() -> None:
    async with world() as here:
        root = (await here.publish(published(manifest(chunks=90)))).root
        seen = IndexSet()
        empty = IndexSet().encode()
        for number in range(1, 4):
            donor, generation = await here.peer(number)
            reply, payload = await donor.ask(AssignChunks(generation, root, 30), empty)
            assert isinstance(reply, Assigned)
            mine = IndexSet.decode(payload)
            assert len(mine) == 30
            assert not mine & seen
            seen |= mine
            _, again = await donor.ask(AssignChunks(generation, root, 30), payload)
            assert again == payload
        experts = IndexSet()
        for number in range(1, 3):
            donor, generation = await here.peer(number)
            _, payload = await donor.ask(AssignExperts(generation, root, PROFILE, 16), empty)
            experts |= IndexSet.decode(payload)
        assert experts == IndexSet.full(32)


async def test_who_asked_what_to_hold_is_told_from_who_serves_by_itself() -> None:
    async with world() as here:
        root = (await here.publish(published(manifest(chunks=4)))).root
        everything = IndexSet.full(4)
        maintainer, one = await here.peer(1)
        await hold(maintainer, one, root, everything)
        donor, two = await here.peer(2)
        await donor.ask(AssignChunks(two, root, 4), IndexSet().encode())
        await hold(donor, two, root, everything)
        reply, _ = await here.caller(3).ask(FindChunks(root))
        assert isinstance(reply, ChunkHolders)
        assert {holder.contact.key: holder.lent for holder in reply.holders} == {
            maintainer.key: False,
            donor.key: True,
        }


async def test_a_peer_counts_in_one_profile_of_a_model() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        everything = IndexSet.full(32).encode()
        stranger, generation = await here.peer(1)
        for number in range(20):
            told = HoldExperts(generation, number, root, bytes([number]) * 32, False, (len(everything),) * 2)
            await stranger.ask(told, everything * 2)
        donor, second = await here.peer(2)
        await hold_experts(donor, second, root, IndexSet.full(32), IndexSet())
        listed, _ = await here.caller(3).ask(ListModels())
        assert isinstance(listed, Models)
        coverage = {one.profile: one.donors for one in listed.models[0].coverage}
        assert coverage == {PROFILE: 1, bytes([19]) * 32: 1}
        entry = here.tracker.registry.get(stranger.key)
        assert entry is not None
        assert len(entry.set_bytes) == 1


def test_a_heartbeat_is_small() -> None:
    beat = Heartbeat(2**60, 10**6, 10**6, service_us=10**6, queue=1000)
    assert len(cbor.encode(encode_fields(beat))) < 100
