"""A tracker's answers, taken with care: pieces that do not fit, silence, and answers to other questions."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from swarm.peers import tracking
from swarm.peers.tracking import (
    MOST_TRIES,
    OddAnswer,
    OddBans,
    OddManifest,
    TrackerClient,
    TrackerSilent,
    ask_again,
    list_bans,
)
from swarm.trust.manifest import MAX_SIGNED_BYTES
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet, MalformedHoldings
from swarm.wire.keys import PeerKey
from swarm.wire.messages import BadMessage, Message, Pong
from swarm.wire.messages.tracker import (
    PIECE_BYTES,
    Ban,
    Bans,
    ChunkHolder,
    ChunkHolders,
    Contact,
    GetManifest,
    LiarJudged,
    ListBans,
    ManifestPiece,
    ReportLiar,
)
from swarm.wire.rpc import RemoteError, Reply

ROOT = b"\7" * 32
ADDRESS = Address("tracker.example", 7300)
KEY = PeerKey(b"\1" * 32)
Answer = Callable[[Any], Reply]


class Linked:
    """Links to a tracker that answers by a function."""

    def __init__(self, answer: Answer | None) -> None:
        self._answer = answer
        self.key = KEY

    async def peer(
        self, address: Address, expected_key: bytes | None = None, *, patient: bool = False
    ) -> Any:
        assert patient
        await trio.lowlevel.checkpoint()
        return self

    async def request(self, message: Message, payload: bytes = b"") -> Reply:
        if self._answer is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        assert self._answer is not None
        return self._answer(message)


def client(answer: Answer | None) -> TrackerClient:
    return TrackerClient(Linked(answer), ADDRESS, None)  # type: ignore[arg-type]


def pieces_of(content: bytes, total: int | None = None) -> Answer:
    """A tracker that gives a manifest piece by piece, and says how long it is."""

    def answer(message: GetManifest) -> Reply:
        piece = content[message.offset : message.offset + PIECE_BYTES]
        return Reply(ManifestPiece(len(content) if total is None else total, (0, 8), bytes(64)), piece)

    return answer


@pytest.mark.parametrize("length", [1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_manifest_is_put_together_from_its_pieces(length: int) -> None:
    content = bytes(range(256)) * (length // 256) + bytes(length % 256)
    found = await client(pieces_of(content)).manifest(ROOT)
    assert found.content == content
    assert found.experts_in_layer == (0, 8)


@pytest.mark.parametrize("total", [0, 5, 1 << 40, 11])
async def test_a_manifest_of_another_length_than_announced_is_refused(total: int) -> None:
    with pytest.raises(OddManifest, match=r"tracker\.example"):
        await client(pieces_of(b"0123456789", total)).manifest(ROOT)


async def test_no_manifest_is_fetched_that_would_be_refused_for_its_length() -> None:
    asked = []

    def answer(message: GetManifest) -> Reply:
        asked.append(message.offset)
        return pieces_of(bytes(PIECE_BYTES + 1), MAX_SIGNED_BYTES + 1)(message)

    with pytest.raises(OddManifest):
        await client(answer).manifest(ROOT)
    assert asked == [0]


async def test_an_answer_to_another_question_is_refused() -> None:
    with pytest.raises(OddAnswer, match="pong where manifest-piece belongs"):
        await client(lambda _: Reply(Pong())).manifest(ROOT)


async def test_a_tracker_that_says_nothing_is_named(autojump_clock: trio.abc.Clock) -> None:
    with pytest.raises(TrackerSilent, match=r"tracker\.example:7300"):
        await client(None).models()


def holders_of(*sets: IndexSet, lengths: list[int] | None = None) -> Answer:
    encoded = [held.encode() for held in sets]
    claimed = lengths or [len(part) for part in encoded]
    contact = Contact(KEY, "", 7, False)
    answer = ChunkHolders(tuple(ChunkHolder(contact, length, False) for length in claimed), False)
    return lambda _: Reply(answer, b"".join(encoded))


async def test_holders_come_with_what_they_hold() -> None:
    first, second = IndexSet.of([1, 2]), IndexSet.full(9)
    found = await client(holders_of(first, second)).holders(ROOT, None, 9)
    assert [holder.chunks for holder in found] == [first, second]


async def test_holdings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadMessage):
        await client(holders_of(IndexSet.full(9), lengths=[200])).holders(ROOT, None, 9)
    with pytest.raises(MalformedHoldings):
        await client(holders_of(IndexSet.full(9))).holders(ROOT, None, 4)


def test_where_a_contact_is() -> None:
    tracker = client(None)
    assert tracker.address_of(Contact(KEY, "10.0.0.1", 5, False)) == Address("10.0.0.1", 5)
    assert tracker.address_of(Contact(KEY, "", 5, False)) == Address("tracker.example", 5)
    assert tracker.address_of(Contact(KEY, "", 0, True)) is None
    tracker.key = KEY
    assert tracker.address_of(Contact(KEY, "10.0.0.1", 5, False)) == ADDRESS


def bans_of(number_after: Callable[[int], int]) -> Answer:
    """A tracker that always has one more ban to list, numbered after the last one that was asked about."""

    def answer(message: ListBans) -> Reply:
        number = number_after(message.after)
        return Reply(Bans((Ban(number, KEY, "it lied", bytes(32), 0, kept=True),), more=number != 5))

    return answer


async def test_bans_are_listed_page_by_page() -> None:
    found = await list_bans(client(bans_of(lambda last: last + 1)))
    assert [ban.number for ban in found] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "number_after", [lambda last: 1, lambda last: last, lambda last: 7 if last < 7 else 6]
)
async def test_bans_that_do_not_rise_are_refused(number_after: Callable[[int], int]) -> None:
    with (
        trio.fail_after(5),
        pytest.raises(OddBans, match=r"tracker\.example:7300 lists its bans out of order"),
    ):
        await list_bans(client(bans_of(number_after)))


async def test_bans_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "MAX_BANS", 100)
    with pytest.raises(OddBans, match="without end: more than 100"):
        await list_bans(client(bans_of(lambda last: last + 10)))


def busy_until(
    attempt: int, code: str = "busy", retry_after_s: float | None = 2.0
) -> tuple[Answer, list[float]]:
    """A tracker that judges at the given attempt and refuses before; and when it was asked."""
    asked_s: list[float] = []

    def answer(_: ReportLiar) -> Reply:
        asked_s.append(trio.current_time())
        if len(asked_s) < attempt:
            raise RemoteError(peer="tracker", text="no", error_code=code, retry_after_s=retry_after_s)
        return Reply(LiarJudged(True, "it lied"))

    return answer, asked_s


async def test_a_question_is_asked_again_while_the_tracker_is_busy(autojump_clock: trio.abc.Clock) -> None:
    report = ReportLiar(KEY, ROOT, bytes(32))
    answer, asked_s = busy_until(3)
    assert (await ask_again(client(answer), report, LiarJudged, b"proof")).message.banned
    assert [round(later - asked_s[0]) for later in asked_s] == [0, 2, 6]
    answer, asked_s = busy_until(99)
    with pytest.raises(RemoteError):
        await ask_again(client(answer), report, LiarJudged, b"proof")
    assert len(asked_s) == MOST_TRIES
    answer, asked_s = busy_until(99, code="banned", retry_after_s=None)
    with pytest.raises(RemoteError):
        await ask_again(client(answer), report, LiarJudged, b"proof")
    assert len(asked_s) == 1
