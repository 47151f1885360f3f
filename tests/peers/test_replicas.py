"""Peers as replicas of a mirror: who has what, what their refusals mean, and what is remembered of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

from mirror.errors import ReplicaBusy, ReplicaFailed, ReplicaLacks
from mirror.tree import Chunk, Tree
from swarm.errors import SwarmError
from swarm.peers.maintainer import ChunkNotHere
from swarm.peers.models import PeerView
from swarm.peers.replicas import PeerReplica, SwarmReplicas
from swarm.peers.tracking import Holder
from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry
from swarm.wire.address import Address
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages import Message, Pong
from swarm.wire.messages.data import Chunk as ChunkAnswer
from swarm.wire.messages.data import ReadChunk
from swarm.wire.messages.tracker import Contact
from swarm.wire.rpc import Busy, RemoteError, Reply, Unreachable

ROOT = b"\7" * 32
COUNT = 6
TREE = Tree([FileEntry("weights", COUNT * CHUNK_BYTES, Digests(bytes(32 * COUNT)))])
TRACKER = Address("tracker.example", 7300)


def key(number: int) -> PeerKey:
    return PeerKey(bytes([number]) * 32)


class Answers:
    """Links whose peers answer every request with the same."""

    def __init__(self, answer: Reply | SwarmError) -> None:
        self.answer = answer
        self.asked: list[Message] = []

    async def peer(
        self, address: Address, expected_key: bytes | None = None, *, patient: bool = False
    ) -> Any:
        await trio.lowlevel.checkpoint()
        return self

    async def request(self, message: Message, payload: bytes = b"") -> Reply:
        self.asked.append(message)
        if isinstance(self.answer, SwarmError):
            raise self.answer
        return self.answer


def replica(answer: Reply | SwarmError) -> PeerReplica:
    return PeerReplica(Answers(answer), Address("peer.example", 1), key(1), ROOT)  # type: ignore[arg-type]


def refusal(code: str, retry_after_s: float | None = None) -> RemoteError:
    return RemoteError(peer="peer", text="no", error_code=code, retry_after_s=retry_after_s)


async def test_a_chunk_is_asked_for_by_root_and_number() -> None:
    asked = replica(Reply(ChunkAnswer(), b"bytes"))
    assert await asked.fetch(TREE.chunk(4)) == b"bytes"
    assert asked.links.asked == [ReadChunk(ROOT, 4)]  # type: ignore[attr-defined]
    assert (asked.given.bytes, asked.given.chunks, asked.given.in_hand) == (5, 1, 0)
    assert asked.key == key(1)
    assert "peer.example:1" in asked.name


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(Busy.code, 3.0), ReplicaBusy),
        (refusal(Busy.code), ReplicaBusy),
        (refusal(ChunkNotHere.code), ReplicaLacks),
        (refusal("file-withdrawn"), ReplicaLacks),
        (refusal("something-new"), ReplicaFailed),
        (Reply(Pong(), b""), ReplicaFailed),
        (Unreachable(address="peer", reason="gone"), Unreachable),
    ],
)
async def test_what_a_peer_answers_instead_has_a_meaning(
    answer: Reply | SwarmError, kind: type[SwarmError]
) -> None:
    asked = replica(answer)
    with pytest.raises(kind) as raised:
        await asked.fetch(TREE.chunk(0))
    assert type(raised.value) is kind
    assert asked.given.in_hand == 0
    assert asked.given.bytes == 0
    if isinstance(raised.value, ReplicaBusy):
        assert raised.value.retry_after_s in (1.0, 3.0)


class Told:
    """A tracker that tells what it is given, question by question."""

    def __init__(self, *answers: Sequence[Holder]) -> None:
        self._answers = list(answers)
        self.asked: list[IndexSet | None] = []

    async def holders(self, root: bytes, wanted: IndexSet | None, chunk_count: int) -> tuple[Holder, ...]:
        assert (root, chunk_count) == (ROOT, COUNT)
        self.asked.append(wanted)
        await trio.lowlevel.checkpoint()
        return tuple(self._answers.pop(0))

    def address_of(self, contact: Contact) -> Address | None:
        return Address(contact.host or TRACKER.host, contact.port) if contact.port else None


def holder(number: int, *chunks: int, host: str = "peer.example", port: int = 1) -> Holder:
    return Holder(Contact(key(number), host, port, False), IndexSet.of(chunks))


def replicas(tracker: Told) -> SwarmReplicas:
    return SwarmReplicas(tracker, Answers(Reply(ChunkAnswer())), ROOT, COUNT)  # type: ignore[arg-type]


def names(found: Sequence[PeerReplica]) -> list[PeerKey]:
    return sorted(replica.key for replica in found)


async def test_holders_are_those_the_tracker_named_and_who_is_named_no_more_holds_nothing() -> None:
    tracker = Told([holder(1, 0, 1), holder(2, 1, 2)], [holder(2, 0)])
    known = replicas(tracker)
    assert known.holders(TREE.chunk(1)) == []
    await known.refresh()
    assert names(known.holders(TREE.chunk(1))) == [key(1), key(2)]
    assert names(known.holders(TREE.chunk(2))) == [key(2)]
    await known.refresh()
    assert names(known.holders(TREE.chunk(0))) == [key(2)]
    assert known.holders(TREE.chunk(1)) == []
    assert names(known.known) == [key(1), key(2)]


async def test_a_look_around_finds_who_came_and_takes_nobody_away() -> None:
    tracker = Told([holder(1, 0, 1)], [holder(2, 0, 3)], [])
    known = replicas(tracker)
    await known.refresh()
    await known.look()
    assert names(known.holders(TREE.chunk(0))) == [key(1), key(2)]
    assert names(known.holders(TREE.chunk(3))) == [key(2)]
    await known.look()
    assert names(known.holders(TREE.chunk(0))) == [key(1), key(2)]


async def test_for_a_chunk_nobody_is_known_to_have_the_tracker_is_asked_in_particular() -> None:
    tracker = Told([holder(1, 0)], [holder(1, 0)], [holder(1, 5), holder(3, 5)], [holder(1, 0)])
    known = replicas(tracker)
    await known.refresh()
    assert known.holders(TREE.chunk(5)) == []
    await known.refresh()
    assert tracker.asked == [None, None, IndexSet.of([5])]
    assert names(known.holders(TREE.chunk(5))) == [key(1), key(3)]
    assert names(known.holders(TREE.chunk(0))) == [key(1)]
    await known.refresh()
    assert tracker.asked == [None, None, IndexSet.of([5]), None]


async def test_a_peer_that_moved_keeps_its_record_and_one_without_an_address_is_left_out() -> None:
    tracker = Told([holder(1, 0), holder(2, 0, port=0)], [holder(1, 0, port=9)])
    known = replicas(tracker)
    await known.refresh()
    (first,) = known.holders(TREE.chunk(0))
    first.given.bytes = 77
    await known.refresh()
    (moved,) = known.holders(TREE.chunk(0))
    assert moved.address.port == 9
    assert moved.given.bytes == 77


async def test_a_donor_of_disk_is_known_as_one_however_much_it_holds() -> None:
    everything = IndexSet.full(COUNT)
    whole = holder(1, *everything), replace(holder(2, *everything), lent=True)
    changed = replace(holder(1, 0), lent=True), holder(2, 0)
    known = replicas(Told(whole, changed))
    await known.refresh()
    assert [PeerView.of(one).lent for one in known.known] == [False, True]
    await known.refresh()
    assert [PeerView.of(one).lent for one in known.known] == [True, False]


async def test_an_accusation_is_kept_for_the_user() -> None:
    known = replicas(Told([holder(1, 0)]))
    await known.refresh()
    (liar,) = known.holders(TREE.chunk(0))
    chunk: Chunk = TREE.chunk(0)
    known.accuse(liar, chunk, "its bytes have another hash", 600.0)
    assert liar.given.wrong == 1
    assert liar.given.banned_until > 0
    assert "chunk 0 of weights" in known.accusations[0]
    assert liar.held != EMPTY


class Open:
    """Doors that always lead somewhere, and count."""

    def __init__(self) -> None:
        self.opened: list[Contact] = []

    async def open(self, contact: Contact) -> tuple[Any, bool]:
        self.opened.append(contact)
        return Answers(Reply(ChunkAnswer(), b"relayed")), True


async def test_whoever_has_no_address_is_reached_through_the_relay() -> None:
    far = Contact(key(4), "", 0, True)
    tracker, doors = Told([Holder(far, IndexSet.of([2]))] * 1), Open()
    tracker.address = TRACKER  # type: ignore[attr-defined]
    known = SwarmReplicas(tracker, Answers(Reply(ChunkAnswer())), ROOT, COUNT, doors)  # type: ignore[arg-type]
    await known.refresh()
    (one,) = known.holders(TREE.chunk(2))
    assert await one.fetch(TREE.chunk(2)) == b"relayed"
    assert doors.opened == [far]


async def test_an_address_that_may_lead_nowhere_is_not_the_only_way() -> None:
    near, both = Contact(key(4), "10.0.0.9", 7, False), Contact(key(4), "10.0.0.9", 7, True)
    tracker, doors = Told([Holder(near, IndexSet.of([2]))], [Holder(both, IndexSet.of([2]))]), Open()
    tracker.address = TRACKER  # type: ignore[attr-defined]
    straight = Answers(Reply(ChunkAnswer(), b"straight"))
    known = SwarmReplicas(tracker, straight, ROOT, COUNT, doors)  # type: ignore[arg-type]
    await known.refresh()
    (one,) = known.holders(TREE.chunk(2))
    assert await one.fetch(TREE.chunk(2)) == b"straight"
    await known.refresh()
    (one,) = known.holders(TREE.chunk(2))
    assert await one.fetch(TREE.chunk(2)) == b"relayed"
    assert one.given.chunks == 2
    assert one.address == Address("10.0.0.9", 7)
    assert doors.opened == [both]
