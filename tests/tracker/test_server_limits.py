"""What a key and a network may take of a tracker: requests, time, bytes, and memory for what they hold."""

import pytest
from blake3 import blake3

from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet, MalformedHoldings
from swarm.wire.keys import PeerKey
from swarm.wire.messages import BadMessage
from swarm.wire.messages.tracker import (
    PIECE_BYTES,
    AssignChunks,
    AssignExperts,
    FindChunks,
    FindExperts,
    GetManifest,
    GetProof,
    HoldChunks,
    HoldExperts,
    ListBans,
    ListModels,
    ReportLiar,
)
from swarm.wire.rpc import Busy
from tests.tracker.kit import FakeCaller, keys, manifest, published
from tests.tracker.world import PROFILE, find, hold, place, world
from tracker import server
from tracker.answers import MODELS_A_PEER
from tracker.catalogue import UnknownModel
from tracker.judge import Verdict
from tracker.quota import Rate
from tracker.registry import Limits, NotRegistered, TooManyHoldings, TooManyPeers
from tracker.server import Options


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
        for _ in range(3):
            with pytest.raises(Busy):
                await caller.ask(ListModels())
        for _ in range(3):
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


async def test_who_is_refused_to_register_uses_up_nobodys_share() -> None:
    options = Options(registrations_a_key=Rate(0.1, 1), registrations_a_network=Rate(0.1, 2))
    async with world(options) as here:
        await here.peer(1, place(1))
        for _ in range(5):
            with pytest.raises(Busy):  # by its own quota
                await here.peer(1, place(1))
        await here.peer(2, place(2))
        for number in (3, 3, 4):
            with pytest.raises(Busy):  # by the network's
                await here.peer(number, place(3))
        here.clock.now_s += 10
        await here.peer(3, place(3))


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
