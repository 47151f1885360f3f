"""What an executor refuses, by name and before any work; whose turn is next; what a call looks like as bytes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from engine.expert_bank import ExpertBank
from engine.kernels import Rows, quantize_rows
from engine.source import DirectorySource
from swarm.peers.banks import open_experts
from swarm.peers.calls import (
    Form,
    MalformedCall,
    MalformedOutputs,
    Work,
    decode_call,
    decode_outputs,
    encode_call,
    encode_outputs,
    pieces,
)
from swarm.peers.executor import profile_of
from swarm.peers.turns import Turns
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages.experts import ExpertsOpen, OpenExperts, RunExperts, RunManyExperts
from swarm.wire.rpc import Busy
from tests.peers.donors import ROOT, Donor


@pytest.fixture
def bank(oracle: Path) -> ExpertBank:
    return open_experts(DirectorySource(oracle / "olmoe"), "auto")


def work_of(bank: ExpertBank, rows: int = 2, layer: int = 0, expert: int = 1) -> Work:
    plain = np.random.default_rng(0).standard_normal((rows, bank.layout.hidden)).astype(np.float32)
    packed = quantize_rows(plain) if bank.shape(layer).integer else plain
    return Work(layer, np.full(rows, expert, np.int32), np.arange(rows, dtype=np.int32), packed)


@asynccontextmanager
async def asked(donor: Donor, bank: ExpertBank) -> AsyncIterator[rpc.Peer]:
    """A connection to a donor."""
    async with trio.open_nursery() as nursery:
        await nursery.start(donor.serve, bank)
        address = Address(donor.contact.host, donor.contact.port)
        async with rpc.connect(address, KeyPair(b"\xfe" * 32)) as peer:
            yield peer
        nursery.cancel_scope.cancel()


def opening(**changes: Any) -> OpenExperts:
    profile = profile_of(ROOT, "auto")
    return OpenExperts(**{"numerics": profile.numerics, "root": ROOT, "weights": "auto"} | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"root": b"\1" * 32}, "another manifest"),
        ({"weights": "native"}, "another form of weights"),
        ({"numerics": 9}, "another version of the arithmetic"),
    ],
)
async def test_another_profile_is_refused_by_name(
    bank: ExpertBank, changes: dict[str, Any], named: str
) -> None:
    donor = Donor(1)
    async with asked(donor, bank) as peer:
        assert (await peer.request(opening())).message == ExpertsOpen(1)
        with pytest.raises(rpc.RemoteError, match=named) as caught:
            await peer.request(opening(**changes))
        assert caught.value.remote_code == "profile-differs"
        assert donor.executor.done.refused == 1


def spoiled(payload: bytes, at: int, value: bytes) -> bytes:
    return payload[:at] + value + payload[at + len(value) :]


async def test_calls_that_cannot_be_are_refused_before_any_work(bank: ExpertBank) -> None:
    form = Form.of(bank.shape(0))
    good, payload = encode_call(form, 1, work_of(bank), np.arange(2))
    scale_at = len(payload) - 2 * 4 * form.groups
    cases: list[tuple[RunExperts, bytes, str]] = [
        (RunExperts(7, 0, 2), payload, "unknown-bank"),
        (RunExperts(1, 99, 2), payload, "malformed-call"),
        (RunExperts(1, 0, 3), payload, "malformed-call"),
        (good, payload[:-1], "malformed-call"),
        (good, spoiled(payload, 0, b"\xff\xff"), "malformed-call"),
        (good, spoiled(payload, 4, b"\x02\x00"), "malformed-call"),
        (good, spoiled(payload, 8, b"\x80"), "malformed-call"),
        (good, spoiled(payload, scale_at, b"\x00\x00\xc0\x7f"), "malformed-call"),
        (good, spoiled(payload, scale_at, b"\x00\x00\x80\x7f"), "malformed-call"),
        (good, spoiled(payload, scale_at, b"\x00\x00\x80\xbf"), "malformed-call"),
        (good, spoiled(payload, 0, b"\x03\x00"), "unassigned-expert"),
    ]
    donor = Donor(1, held=[1])
    async with asked(donor, bank) as peer:
        await peer.request(opening())
        for message, data, code in cases:
            with pytest.raises(rpc.RemoteError) as caught:
                await peer.request(message, data)
            assert caught.value.remote_code == code, (message, caught.value)
        assert donor.executor.done.calls == 0
        assert donor.executor.done.refused == len(cases)
        reply = await peer.request(good, payload)
        outputs = decode_outputs(form, 2, bytes(reply.payload), "it")
        right = bank.run(0, work_of(bank).rows, work_of(bank).expert, work_of(bank).row)
        assert np.array_equal(outputs.values, right.values)
        assert np.array_equal(outputs.scale, right.scale)


async def test_a_paused_executor_says_when_to_come_again(bank: ExpertBank) -> None:
    donor = Donor(1)
    donor.executor.paused = True
    form = Form.of(bank.shape(0))
    async with asked(donor, bank) as peer:
        await peer.request(opening())
        with pytest.raises(rpc.RemoteError) as caught:
            await peer.request(*encode_call(form, 1, work_of(bank), np.arange(2)))
        assert caught.value.remote_code == "busy"
        assert caught.value.retry_after_s == 10


def test_plain_floats_travel_too_and_must_be_finite() -> None:
    form = Form(40, False)
    plain = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    work = Work(5, np.array([4, 4, 9], np.int32), np.array([2, 0, 2], np.int32), plain)
    message, payload = encode_call(form, 3, work, np.arange(3))
    assert (message.bank, message.layer, message.pairs) == (3, 5, 3)
    found = decode_call(form, 10, message, payload)
    assert np.array_equal(np.asarray(found.rows)[found.row], plain[work.row])
    assert np.array_equal(found.expert, work.expert)
    for bad in (np.nan, np.inf):
        plain[2, 7] = bad
        with pytest.raises(MalformedCall, match="no finite number"):
            decode_call(form, 10, *encode_call(form, 3, work, np.arange(3)))
    with pytest.raises(MalformedOutputs, match="no finite"):
        decode_outputs(form, 1, np.full(40, np.nan, np.float32).tobytes(), "it")
    with pytest.raises(MalformedOutputs, match="bytes"):
        decode_outputs(form, 2, bytes(160), "it")


def test_long_calls_are_divided_and_each_row_is_sent_once_a_call() -> None:
    form = Form(2048, True)
    rows = quantize_rows(np.ones((600, 2048), np.float32))
    work = Work(
        0, np.tile(np.arange(8, dtype=np.int32), 600), np.repeat(np.arange(600, dtype=np.int32), 8), rows
    )
    found = pieces(form, work)
    assert sorted(np.concatenate(found).tolist()) == list(range(4800))
    for piece in found:
        message, payload = encode_call(form, 1, work, piece)
        assert isinstance(message, RunManyExperts)
        assert len(payload) <= type(message).payload_limit
        part = decode_call(form, 8, message, payload)
        assert isinstance(part.rows, Rows)
        assert len(part.rows) == len(np.unique(work.row[piece]))
    one = Work(0, work.expert[:8], work.row[:8], quantize_rows(np.ones((1, 2048), np.float32)))
    assert type(encode_call(form, 1, one, np.arange(8))[0]) is RunExperts
    assert [piece.tolist() for piece in pieces(form, one)] == [list(range(8))]


def test_outputs_come_back_as_they_were(bank: ExpertBank) -> None:
    work = work_of(bank)
    outputs = bank.run(0, work.rows, work.expert, work.row)
    again = decode_outputs(Form.of(bank.shape(0)), 2, encode_outputs(outputs), "it")
    assert np.array_equal(again.values, outputs.values)
    assert np.array_equal(again.f32(), outputs.f32())


A, B = PeerKey(b"a" * 32), PeerKey(b"b" * 32)


async def test_clients_take_turns_and_the_queue_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    turns, order = Turns(most_waiting=5, most_a_client=4), list[str]()

    async def work(client: PeerKey, name: str) -> None:
        async with turns.turn(client):
            order.append(name)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for client, name in ((A, "a1"), (A, "a2"), (A, "a3"), (A, "a4"), (B, "b1"), (B, "b2")):
            nursery.start_soon(work, client, name)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy) as caught:
            async with turns.turn(B):
                pass
        assert float(str(caught.value.fields["retry_after_s"])) > 0
    assert order == ["a1", "a2", "b1", "a3", "b2", "a4"]
    assert (turns.waiting, turns.busy, turns.turned_away) == (0, False, 1)
    await turns.idle()


async def test_whoever_is_gone_leaves_the_queue(autojump_clock: trio.testing.MockClock) -> None:
    turns, done = Turns(), list[str]()

    def job(name: str) -> Callable[[], Any]:
        async def work() -> None:
            async with turns.turn(A):
                done.append(name)
                await trio.sleep(1)

        return work

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job("first"))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await job("gone")()
        assert turns.waiting == 0
        nursery.start_soon(job("second"))
    assert done == ["first", "second"]


async def test_who_leaves_answers_what_waits_and_takes_nothing_more(bank: ExpertBank) -> None:
    donor, work = Donor(1), work_of(bank)
    async with asked(donor, bank) as peer, trio.open_nursery() as nursery:
        opened = (await peer.request(opening())).message
        assert isinstance(opened, ExpertsOpen)
        message, request = encode_call(Form.of(bank.shape(0)), opened.bank, work, np.arange(2))
        turns, answers, left = donor.executor.turns, [], trio.Event()

        async def call() -> None:
            answers.append((await peer.request(message, request)).message)

        async def leave() -> None:
            await donor.executor.drain()
            left.set()

        with trio.fail_after(30):
            async with turns.turn(KeyPair(b"\x0b" * 32).key):
                nursery.start_soon(call)
                while not turns.waiting:  # noqa: ASYNC110 - there is no event to wait for
                    await trio.sleep(0.005)
                nursery.start_soon(leave)
                await trio.testing.wait_all_tasks_blocked(0.05)
                with pytest.raises(rpc.RemoteError, match="owner has paused"):
                    await peer.request(message, request)
                assert not left.is_set()
            await left.wait()
            while not answers:  # noqa: ASYNC110 - it is on its way
                await trio.sleep(0.005)
