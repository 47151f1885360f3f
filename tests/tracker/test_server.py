"""The tracker's handlers, asked directly: registering, holding, finding, assigning, publishing, judging."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from blake3 import blake3

from swarm.errors import SwarmError
from swarm.wire import cbor
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet, MalformedHoldings
from swarm.wire.keys import PeerKey
from swarm.wire.messages import BadMessage, encode_fields
from swarm.wire.messages.tracker import (
    PIECE_BYTES,
    AssignChunks,
    Assigned,
    AssignExperts,
    ChunkHolders,
    Contact,
    ExpertHolders,
    FindChunks,
    FindExperts,
    GetManifest,
    GetProof,
    Heartbeat,
    HeartbeatSeen,
    HoldChunks,
    HoldExperts,
    LeaveSwarm,
    LiarJudged,
    ListBans,
    ListModels,
    ManifestPiece,
    ManifestPublished,
    Models,
    PeerRegistered,
    PublishManifest,
    RegisterPeer,
    ReportLiar,
    split_parts,
)
from swarm.wire.rpc import Busy, Unreachable
from tests.tracker.kit import OPERATOR, FakeCaller, HandClock, Published, keys, manifest, published
from tracker import answers, server
from tracker.answers import MODELS_A_PEER, HoldingsOutOfStep
from tracker.catalogue import UnknownModel
from tracker.judge import Banned, UnknownProof, Verdict
from tracker.publish import BrokenUpload, NotAnOperator
from tracker.quota import Rate
from tracker.registry import Limits, NotRegistered, TooManyHoldings, TooManyPeers
from tracker.server import SWEEP_S, Options, Tracker, open_tracker
from tracker.store import MemoryStore, UnusableStore

PROFILE = b"p" * 32
HERE = Address("127.0.0.1", 50000)


def place(number: int) -> Address:
    return Address(f"198.51.{number // 250}.{number % 250 + 1}", 50000)


@dataclass
class World:
    """A tracker, its clock, and the addresses at which peers answer a dial back."""

    tracker: Tracker
    clock: HandClock
    store: MemoryStore
    answering: Callable[[Address, PeerKey], bool]

    def caller(self, number: int, address: Address | None = None) -> FakeCaller:
        return FakeCaller(self.tracker.handlers(), keys(number), address or place(number))

    async def peer(self, number: int, address: Address | None = None) -> tuple[FakeCaller, int]:
        """A registered caller and its generation."""
        caller = self.caller(number, address)
        reply, _ = await caller.ask(RegisterPeer("test", (), 7300))
        assert isinstance(reply, PeerRegistered)
        return caller, reply.generation

    async def publish(self, new: Published) -> Published:
        await self.tracker.publishing.accept(new.encoded, new.layout, new.layout_signature)
        return new


@asynccontextmanager
async def world(
    options: Options | None = None,
    verdict: Verdict | SwarmError | None = None,
    answering: Callable[[Address, PeerKey], bool] = lambda address, key: True,
    store: MemoryStore | None = None,
) -> AsyncIterator[World]:
    clock = HandClock()
    store = store or MemoryStore()

    async def dial_back(address: Address, key: PeerKey) -> None:
        if not answering(address, key):
            raise Unreachable(address=address, reason="nobody answers")

    async def verifier(accused: PeerKey, root: bytes, profile: bytes, proof: bytes) -> Verdict:
        if isinstance(verdict, SwarmError):
            raise verdict
        assert verdict is not None
        return verdict

    async with open_tracker(
        keys(0),
        store,
        options=options,
        verifier=None if verdict is None else verifier,
        dial_back=dial_back,
        clock=clock,
    ) as tracker:
        yield World(tracker, clock, store, answering)


async def hold(caller: FakeCaller, generation: int, root: bytes, held: IndexSet, revision: int = 1) -> None:
    data = held.encode()
    await caller.ask(HoldChunks(generation, revision, 0, root, (len(data),)), data)


async def hold_experts(
    caller: FakeCaller,
    generation: int,
    root: bytes,
    ready: IndexSet,
    resident: IndexSet,
    last_resort: bool = False,
) -> None:
    parts = [ready.encode(), resident.encode()]
    lengths = (len(parts[0]), len(parts[1]))
    await caller.ask(HoldExperts(generation, 1, root, PROFILE, last_resort, lengths), b"".join(parts))


async def find(caller: FakeCaller, root: bytes, wanted: bytes = b"") -> dict[Contact, IndexSet]:
    reply, payload = await caller.ask(FindChunks(root), wanted)
    assert isinstance(reply, ChunkHolders)
    parts = split_parts(payload, [holder.set_bytes for holder in reply.holders], reply.kind)
    return {h.contact: IndexSet.decode(part) for h, part in zip(reply.holders, parts, strict=True)}


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


async def test_models_are_listed_and_manifests_come_in_pieces() -> None:
    async with world() as here:
        new = published(manifest(chunks=40_000))
        encoded = new.encoded
        assert len(encoded) > PIECE_BYTES
        operator = here.caller(5)
        for offset in range(0, len(encoded), PIECE_BYTES):
            message = PublishManifest(offset, len(encoded), new.layout, new.layout_signature)
            reply, _ = await operator.ask(message, encoded[offset : offset + PIECE_BYTES])
        assert reply == ManifestPublished(True, len(encoded), new.root)
        listed, _ = await here.caller(6).ask(ListModels())
        assert isinstance(listed, Models)
        assert [model.name for model in listed.models] == ["model"]
        assert listed.models[0].operator == OPERATOR.key
        received = b""
        while len(received) < listed.models[0].manifest_bytes:
            piece, payload = await here.caller(6).ask(GetManifest(new.root, len(received)))
            assert isinstance(piece, ManifestPiece)
            assert (piece.experts_in_layer, piece.layout_signature) == (new.layout, new.layout_signature)
            received += payload
        assert received == encoded


async def test_broken_uploads_are_refused() -> None:
    async with world() as here:
        new = published()
        whole = new.encoded
        caller = here.caller(1)

        def piece(offset: int, total: int = len(whole)) -> PublishManifest:
            return PublishManifest(offset, total, new.layout, new.layout_signature)

        with pytest.raises(BrokenUpload, match="out of order"):
            await caller.ask(piece(10), whole[10:])
        await caller.ask(piece(0), whole[:10])
        with pytest.raises(BrokenUpload, match="out of order"):
            await caller.ask(piece(11), whole[11:])
        with pytest.raises(BrokenUpload, match="out of order"):
            await caller.ask(piece(10, len(whole) + 1), whole[10:])
        with pytest.raises(BrokenUpload, match="beyond the end"):
            await caller.ask(piece(10), whole)
        with pytest.raises(BrokenUpload, match="it must have between"):
            await caller.ask(piece(0, 1 << 40), whole)
        here.clock.now_s = 1e6
        await here.caller(2).ask(piece(0), whole[:10])
        with pytest.raises(BrokenUpload, match="too late"):
            await caller.ask(piece(10), whole[10:])


async def test_a_tracker_may_take_only_its_own_operators_models() -> None:
    async with world(Options(operators=frozenset([OPERATOR.key]))) as here:
        await here.publish(published())
        with pytest.raises(NotAnOperator, match="ask whoever runs it"):
            await here.publish(published(manifest("other"), operator=keys(9)))


async def test_what_the_disk_does_not_take_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryStore, manifest: object, forgotten: object) -> None:
        raise UnusableStore(path="tracker.sqlite", reason="database or disk is full")

    async with world() as here:
        first = await here.publish(published())
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "publish", full)
            with pytest.raises(UnusableStore, match="disk is full"):
                await here.publish(published(manifest(version=2)))
        listed, _ = await here.caller(1).ask(ListModels())
        assert isinstance(listed, Models)
        assert [model.root for model in listed.models] == [first.root]
        await here.publish(published(manifest(version=2)))


async def test_a_proof_that_holds_bans_and_outlives_a_restart() -> None:
    store = MemoryStore()
    async with world(verdict=Verdict(True, "its answer was recomputed and differs"), store=store) as here:
        root = (await here.publish(published())).root
        liar, generation = await here.peer(1)
        await hold(liar, generation, root, IndexSet.full(100))
        reply, _ = await here.caller(2).ask(ReportLiar(liar.key, root, PROFILE), b"the proof")
        assert reply == LiarJudged(True, "its answer was recomputed and differs")
        assert await find(here.caller(2), root) == {}
        for message in (RegisterPeer("test", (), 7300), ListModels()):
            with pytest.raises(Banned, match="its answer was recomputed and differs"):
                await liar.ask(message)
    async with world(store=store) as again:
        with pytest.raises(Banned):
            await again.peer(1)
        listed, _ = await again.caller(2).ask(ListBans())
        (ban,) = listed.bans  # type: ignore[attr-defined]
        assert (ban.key, ban.number) == (liar.key, 1)
        assert (await again.caller(2).ask(GetProof(ban.proof)))[1] == b"the proof"
        assert (await again.caller(2).ask(ListBans(after=1)))[0].bans == ()  # type: ignore[attr-defined]
        with pytest.raises(UnknownProof):
            await again.caller(2).ask(GetProof(b"x" * 32))
        listed, _ = await again.caller(2).ask(ListModels())
        assert isinstance(listed, Models)
        assert listed.models[0].root == root


async def test_nobody_is_banned_without_a_proof_that_the_tracker_verified() -> None:
    accusation = ReportLiar(keys(1).key, b"r" * 32, PROFILE)
    async with world() as here:
        reply, _ = await here.caller(2).ask(accusation, b"proof")
        assert reply == LiarJudged(False, "this tracker has no means to verify a proof")
    async with world(verdict=Verdict(False, "the receipt is not signed by the accused")) as here:
        for _ in range(2):
            reply, _ = await here.caller(2).ask(accusation, b"proof")
            assert reply == LiarJudged(False, "the receipt is not signed by the accused")
        await here.peer(1)
    async with world(verdict=UnknownModel(root=b"r" * 32)) as here:
        with pytest.raises(Busy, match="Verifying the proof"):
            await here.caller(2).ask(accusation, b"proof")
        await here.peer(1)


async def test_reports_are_rationed() -> None:
    async with world(verdict=Verdict(False, "no")) as here:
        caller = here.caller(2)
        for number in range(10):
            await caller.ask(ReportLiar(keys(1).key, b"r" * 32, PROFILE), bytes([number]))
        with pytest.raises(Busy):
            await caller.ask(ReportLiar(keys(1).key, b"r" * 32, PROFILE), b"one more")


async def test_requests_and_registrations_are_rationed() -> None:
    options = Options(
        requests_a_key=Rate(1, 5),
        requests_a_network=Rate(1, 8),
        registrations_a_key=Rate(0.1, 2),
        limits=Limits(peers_per_network=1),
    )
    async with world(options) as here:
        caller, neighbour = here.caller(1), here.caller(2, place(1))
        for _ in range(5):
            await caller.ask(ListModels())
        with pytest.raises(Busy):
            await caller.ask(ListModels())
        for _ in range(2):
            await neighbour.ask(ListModels())
        with pytest.raises(Busy):
            await neighbour.ask(ListModels())
        await here.peer(300)
        await here.peer(300)
        with pytest.raises(Busy):
            await here.peer(300)
        here.clock.now_s = 100
        with pytest.raises(TooManyPeers):
            await here.peer(301)


async def test_the_time_that_questions_take_is_rationed() -> None:
    options = Options(work_a_key=Rate(0.1, 2), work_a_network=Rate(0.5, 4))
    async with world(options) as here:
        root = (await here.publish(published())).root
        here.clock.look_s = 0.5
        caller, neighbour, stranger = here.caller(1), here.caller(2, place(1)), here.caller(300)
        for _ in range(5):
            await caller.ask(FindChunks(root))
        with pytest.raises(Busy) as turned_away:
            await caller.ask(FindChunks(root))
        assert turned_away.value.fields["retry_after_s"] == 5.0
        for _ in range(4):
            await neighbour.ask(ListModels())
        with pytest.raises(Busy):
            await neighbour.ask(ListModels())
        await stranger.ask(FindChunks(root))
        await caller.ask(ListBans())  # what costs nothing is answered
        here.clock.now_s += 5.0
        await caller.ask(FindChunks(root))


async def test_the_bytes_of_manifests_and_proofs_are_rationed() -> None:
    new, proof = published(manifest(chunks=40_000)), b"p" * 900_000
    guilty = Verdict(True, "it signed a wrong answer")
    options = Options(read_a_key=Rate(100_000, 2_000_000), read_a_network=Rate(200_000, 4_000_000))
    async with world(options, guilty) as here:
        await here.publish(new)
        caller, neighbour, stranger = here.caller(1), here.caller(2, place(1)), here.caller(300)
        await caller.ask(ReportLiar(keys(7).key, new.root, PROFILE), proof)
        question = GetManifest(new.root), GetProof(blake3(proof).digest())
        for _ in range(2):
            assert len((await caller.ask(question[0]))[1]) == PIECE_BYTES
        for one in question:
            with pytest.raises(Busy) as turned_away:
                await caller.ask(one)
            assert turned_away.value.fields["retry_after_s"] == round(2 * PIECE_BYTES / 100_000 - 20, 2)
        await caller.ask(ListBans())  # what is small is answered
        for _ in range(3):
            await neighbour.ask(question[1])
        with pytest.raises(Busy):
            await neighbour.ask(question[1])
        with pytest.raises(Busy):  # with another key: the network's share is used up
            await here.caller(3, place(1)).ask(question[0])
        await stranger.ask(question[0])
        here.clock.now_s += 10
        await caller.ask(question[1])


async def test_registrations_of_a_network_and_dials_under_way_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled: list[Address] = []

    def answering(address: Address, key: PeerKey) -> bool:
        dialled.append(address)
        return True

    async with world(Options(registrations_a_network=Rate(1, 3)), answering=answering) as here:
        for number in range(3):
            await here.peer(number, place(1))
        assert len(dialled) == 3
        with pytest.raises(Busy):
            await here.peer(4, place(2))
        assert len(dialled) == 3
        await here.peer(5, place(300))
        monkeypatch.setattr(server, "MOST_DIALLING", 0)
        with pytest.raises(Busy):
            await here.peer(6, place(600))


async def test_hostile_holdings_are_typed_errors_and_change_nothing() -> None:
    async with world() as here:
        root = (await here.publish(published())).root
        peer, generation = await here.peer(1)
        await hold(peer, generation, root, IndexSet.of([1]))
        beyond, inside = IndexSet.of([100]).encode(), IndexSet.of([1]).encode()
        empty = IndexSet().encode()
        attempts = [
            (HoldChunks(generation, 2, 0, root, (len(beyond),)), beyond, MalformedHoldings),
            (HoldChunks(generation, 2, 0, root, (len(inside) + 1,)), inside, BadMessage),
            (HoldChunks(generation, 2, 0, b"x" * 32, (len(inside),)), inside, UnknownModel),
            (HoldChunks(generation + 1, 2, 0, root, (len(inside),)), inside, NotRegistered),
            (
                HoldExperts(generation, 2, root, PROFILE, False, (len(empty), len(inside))),
                empty + inside,
                BadMessage,
            ),
            (AssignChunks(generation, root, 5), beyond, MalformedHoldings),
            (AssignExperts(generation, root, PROFILE, 5), b"", MalformedHoldings),
            (FindChunks(root), b"\x07", MalformedHoldings),
            (FindExperts(root, PROFILE), beyond, MalformedHoldings),
        ]
        for message, payload, error in attempts:
            with pytest.raises(error):
                await peer.ask(message, payload)  # type: ignore[arg-type]
        assert list((await find(here.caller(2), root)).values()) == [IndexSet.of([1])]


async def test_a_peer_holds_parts_of_so_many_models_only() -> None:
    async with world() as here:
        peer, generation = await here.peer(1)
        for number in range(MODELS_A_PEER):
            root = (await here.publish(published(manifest(f"model {number}", chunks=1)))).root
            await hold(peer, generation, root, IndexSet.of([0]))
        root = (await here.publish(published(manifest("another", chunks=1)))).root
        with pytest.raises(TooManyHoldings):
            await hold(peer, generation, root, IndexSet.of([0]))


# In each block of the index, so that few bytes make much work and memory.
SPARSE = IndexSet.of(range(2047, 20_000, 2048))
BIG = 20_000


async def test_a_peers_sets_are_bounded_by_what_they_take() -> None:
    limits = Limits(set_bytes_per_peer=9_000)
    async with world(Options(limits=limits)) as here:
        peer, generation = await here.peer(1)
        assert len(SPARSE.encode()) < 40
        one = (await here.publish(published(manifest("one", chunks=BIG)))).root
        two = (await here.publish(published(manifest("two", chunks=BIG)))).root
        await hold(peer, generation, one, SPARSE)
        await hold(peer, generation, one, SPARSE)
        with pytest.raises(TooManyHoldings, match="longer ranges"):
            await hold(peer, generation, two, SPARSE)
        with pytest.raises(TooManyHoldings, match="longer ranges"):  # what it is told to hold counts, too
            await peer.ask(AssignChunks(generation, two, len(SPARSE)), SPARSE.encode())
        await hold(peer, generation, two, IndexSet.of([5]))
        await hold(peer, generation, one, IndexSet.full(BIG))
        await hold(peer, generation, two, SPARSE)


async def test_the_sets_of_a_network_and_of_all_are_bounded() -> None:
    limits = Limits(set_bytes_per_network=15_000, set_bytes=48_000)
    async with world(Options(limits=limits)) as here:
        root = (await here.publish(published(manifest(chunks=BIG)))).root

        async def join(number: int, address: str) -> FakeCaller:
            caller, generation = await here.peer(number, Address(address, 50000))
            await hold(caller, generation, root, SPARSE)
            return caller

        first = [await join(number, f"198.51.7.{number}") for number in range(2)]
        with pytest.raises(TooManyHoldings, match=r"198\.51\.7\.0/24"):
            await join(2, "198.51.7.2")
        for number in range(3, 7):
            await join(number, f"198.51.{100 + number}.1")
        with pytest.raises(TooManyHoldings, match="of all peers is"):
            await join(7, "198.51.200.1")
        here.tracker.forget(first[0].key)
        await join(2, "198.51.7.2")


async def test_what_gone_models_and_peers_took_is_free_again() -> None:
    async with world() as here:
        peer, generation = await here.peer(1)
        for version in range(1, 8):
            root = (await here.publish(published(manifest(version=version, chunks=BIG)))).root
            await hold(peer, generation, root, SPARSE)
        entry = here.tracker.registry.get(peer.key)
        assert entry is not None
        assert len(entry.set_bytes) == 3
        registry = here.tracker.registry
        assert registry._set_bytes.total() == sum(entry.set_bytes.values()) > 0
        here.tracker.forget(peer.key)
        assert registry._set_bytes.total() == 0


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
