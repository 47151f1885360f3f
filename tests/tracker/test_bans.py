"""What is kept of bans and proofs is bounded, and who floods the tracker drops only its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from swarm.wire.address import Address
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import GetProof, LiarJudged, ListBans, ListModels, ReportLiar
from tests.tracker.kit import FakeCaller, HandClock, keys
from tracker import bans
from tracker.bans import A_MODEL, A_NETWORK, IN_ALL, Bans, Bound, KeptProof, Proofs, proofs_to_drop
from tracker.judge import Banned, ProofDropped, UnknownProof, Verdict
from tracker.server import Tracker, open_tracker
from tracker.store import Dropped, MemoryStore, StoredBan

MIB = 1 << 20


def kept(number: int, mib: int, network: str | None = "n", root: bytes = b"r") -> KeptProof:
    return KeptProof(number, root, network, mib * MIB)


def ban(number: int) -> StoredBan:
    return StoredBan(number, keys(number).key, "it lied", number.to_bytes(32, "big"), 0, b"r" * 32)


def taken(proofs: list[KeptProof]) -> tuple[int, int]:
    return len(proofs), sum(proof.bytes for proof in proofs)


def after_all(coming: list[KeptProof]) -> list[KeptProof]:
    """What is kept when proofs came one after the other."""
    there: list[KeptProof] = []
    for new in coming:
        dropped = proofs_to_drop(new, there)
        there = [*(proof for proof in there if proof.number not in dropped), new]
    return there


def test_while_there_is_room_nothing_is_dropped() -> None:
    some = [kept(n, 6, network=f"n{n}") for n in range(A_MODEL.bytes // (6 * MIB))]
    assert after_all(some) == some


@pytest.mark.parametrize("mib", [0, 1, 6])
def test_a_network_keeps_its_latest_proofs(mib: int) -> None:
    there = after_all([kept(n, mib) for n in range(300)])
    assert there[-1].number == 299
    assert A_NETWORK.share(there) <= 1
    assert A_NETWORK.share([*there, kept(0, mib)]) > 1


def test_a_flood_drops_its_own_and_leaves_what_others_reported() -> None:
    honest = [kept(n, 6, network=f"honest{n}", root=bytes([n % 5])) for n in range(20)]
    flood = [kept(n, 6, network=f"flood{n % 3}", root=bytes([n % 5])) for n in range(100, 500)]
    there = after_all([*honest, *flood])
    assert IN_ALL.share(there) <= 1
    assert [proof for proof in there if proof.number < 100] == honest


def test_the_proofs_of_one_model_leave_room_for_those_of_others() -> None:
    other = [kept(1, 6, root=b"other")]
    there = after_all([*other, *(kept(n, 6, network=f"n{n}") for n in range(2, 200))])
    assert other[0] in there
    assert A_MODEL.share([proof for proof in there if proof.root == b"r"]) <= 1


def test_whoever_comes_from_everywhere_is_bounded_in_all() -> None:
    there = after_all([kept(n, 5, network=f"n{n}", root=bytes([n % 40])) for n in range(400)])
    count, size = taken(there)
    assert count <= IN_ALL.proofs
    assert IN_ALL.bytes - 5 * MIB < size <= IN_ALL.bytes
    assert there[-1].number == 399


def test_proofs_of_forgotten_bans_are_forgotten() -> None:
    proofs = Proofs()
    proofs.add(kept(1, 1))
    proofs.add(kept(2, 1))
    proofs.forget([1, 7])
    assert 1 not in proofs
    assert 2 in proofs


def test_of_very_many_bans_those_go_whose_keys_did_not_come_for_longest() -> None:
    some = Bans(most=3)
    for number in (1, 2, 3):
        assert some.add(ban(number)) == []
    assert some.came(keys(1).key) == ban(1)
    assert some.of(keys(2).key) == ban(2)
    assert some.add(ban(4)) == [ban(2)]
    assert some.next_number == 5
    assert some.of(keys(2).key) is None
    assert some.with_proof(ban(2).digest) is None
    assert [some.of(keys(number).key) for number in (1, 3, 4)] == [ban(1), ban(3), ban(4)]
    assert some.after(0, 2) == ([ban(1), ban(3)], True)
    assert some.after(1, 2) == ([ban(3), ban(4)], False)


@dataclass
class Judging:
    tracker: Tracker
    store: MemoryStore
    digests: list[bytes] = field(default_factory=list)

    async def report(self, number: int, proof: bytes) -> None:
        caller = FakeCaller(self.tracker.handlers(), keys(99_000 + number), Address("198.51.7.7", 50000))
        judged, _ = await caller.ask(ReportLiar(keys(number).key, b"r" * 32, b"p" * 32), proof)
        assert judged == LiarJudged(True, "it signed a wrong answer")


@asynccontextmanager
async def judging(store: MemoryStore) -> AsyncIterator[Judging]:
    async def verifier(accused: PeerKey, root: bytes, profile: bytes, proof: bytes) -> Verdict:
        return Verdict(True, "it signed a wrong answer")

    async with open_tracker(keys(0), store, verifier=verifier, clock=HandClock()) as tracker:
        yield Judging(tracker, store)


async def test_a_ban_outlives_its_proof_and_the_tracker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "A_NETWORK", Bound(proofs=2, bytes=MIB))
    store = MemoryStore()
    async with judging(store) as here:
        for number in (1, 2, 3):
            await here.report(number, b"proof %d" % number)
        assert list(store.proof_bytes()) == [2, 3]
    for _ in range(2):  # after a restart, too
        async with judging(store) as here:
            asker = FakeCaller(here.tracker.handlers(), keys(50))
            listed, _ = await asker.ask(ListBans())
            first, second, third = listed.bans  # type: ignore[attr-defined]
            assert [ban.kept for ban in (first, second, third)] == [False, True, True]
            with pytest.raises(ProofDropped, match=r"keeps the proof .* no longer.*stays banned") as raised:
                await asker.ask(GetProof(first.proof))
            assert raised.value.fields["peer"] == keys(1).key
            assert (await asker.ask(GetProof(second.proof)))[1] == b"proof 2"
            with pytest.raises(UnknownProof):
                await asker.ask(GetProof(b"x" * 32))
            with pytest.raises(Banned):
                await FakeCaller(here.tracker.handlers(), keys(1)).ask(ListModels())


async def test_what_an_earlier_version_kept_without_bound_is_brought_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    for number in range(1, 9):
        store.ban(ban(number), bytes(100), Dropped())
    monkeypatch.setattr(bans, "IN_ALL", Bound(proofs=1024, bytes=350))
    monkeypatch.setattr(bans.Bans.__init__, "__defaults__", (6,))
    async with judging(store) as here:
        assert here.tracker.judge.count == 6
    assert [one.number for one in store.bans()] == [3, 4, 5, 6, 7, 8]
    assert list(store.proof_bytes()) == [6, 7, 8]
