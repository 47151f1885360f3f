"""Audits against liars of every rate, by simulation with seeds; and proofs, read back and judged."""

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from engine.cache import State
from engine.errors import EngineError
from engine.expert_bank import ExpertBank
from engine.kernels import ExpertRows, quantize_rows
from engine.source import DirectorySource
from swarm.peers.audit import Recomputer
from swarm.peers.banks import layout_of, open_experts
from swarm.peers.calls import UNSIGNED, Form, Work, encode_call, encode_outputs
from swarm.peers.executor import Executor, profile_of, whole_bank
from swarm.peers.lies_bench import (
    FORM,
    KEYS,
    PROFILE,
    REQUEST,
    RIGHT,
    WRONG,
    Found,
    Simulation,
    answer,
    measure,
    replica,
)
from swarm.peers.partner import Answer, Remote
from swarm.peers.proof import BadProof, Proof
from swarm.peers.verdict import AskingVerifier, ExecutorVerifier, NobodyToAsk
from swarm.trust.profile import NumericProfile
from swarm.trust.receipts import give_receipt, reply_digest, request_digest
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import BadSignature, PeerKey
from swarm.wire.messages.experts import RunExperts
from tests.peers.donors import ROOT, Donor


async def test_liars_are_found_as_soon_as_the_share_implies_and_nobody_else() -> None:
    found = await measure(share=0.25, seeds=200, honest_calls=20_000)
    assert sorted(found.one) == [0.01, 0.1, 1.0]
    for rate, one in found.one.items():
        assert one.within, f"{rate}: {one}"
    assert found.all_first.within, found.all_first
    assert found.all_but_one.within, found.all_but_one
    assert (found.wrongly_accused, found.honest_banned) == (0, 0)


def test_what_chance_allows_is_known() -> None:
    found = Found.of([9, 11, 10, 10], [0.1])
    assert (found.calls, found.implied, found.within) == (10, 10, True)
    assert found.allowed == pytest.approx(3 * math.sqrt(90 / 4))
    assert not Found.of([30, 40], [1.0]).within


@pytest.mark.slow
async def test_no_honest_donor_is_ever_banned() -> None:
    simulation = Simulation(0, 0.05, 0.0, ())
    for _ in range(1_000_000):
        await simulation.call()
    audits = simulation.auditor.audits
    assert simulation.convictions == []
    assert abs(audits.drawn - 50_000) < 3 * math.sqrt(1_000_000 * 0.05 * 0.95)
    assert audits.agreed + audits.recomputed == audits.drawn


async def test_when_two_disagree_only_the_one_who_is_wrong_is_convicted() -> None:
    simulation = Simulation(0, 1.0, 1.0, {1})
    honest, lying = simulation.remotes[:2]
    found = await simulation.auditor._settle([answer(honest, RIGHT), answer(lying, WRONG)])
    assert found.certain
    assert np.array_equal(found.outputs.values, RIGHT.values)
    (conviction,) = simulation.convictions
    assert conviction.donor is lying
    assert conviction.proof is not None
    conviction.proof.check_signature()


class Scripted(random.Random):
    """Luck that was written down."""

    def __init__(self, *values: float) -> None:
        super().__init__(0)
        self._values = list(values)

    def random(self) -> float:
        return self._values.pop(0)

    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.mark.parametrize("at_hand", [True, False])
@pytest.mark.parametrize("here", [0.0, 0.9])
async def test_when_every_answer_is_audited_no_lie_is_used_whatever_is_drawn(
    at_hand: bool, here: float
) -> None:
    simulation = Simulation(0, 1.0, 1.0, {1})
    simulation.auditor._luck = Scripted(here)
    simulation.auditor._recompute.ready = lambda work: at_hand
    found = await simulation.auditor.check(answer(simulation.remotes[1], WRONG), 1, simulation.ask)
    assert found.certain
    assert np.array_equal(found.outputs.values, RIGHT.values)
    assert [conviction.donor for conviction in simulation.convictions] == [simulation.remotes[1]]
    assert simulation.auditor.pending == 0


@pytest.mark.parametrize("share", [0.5, 1.0])
async def test_without_the_bytes_an_answer_is_used_only_where_not_all_are_audited(share: float) -> None:
    simulation = without_bytes(share)
    said = answer(simulation.remotes[0], RIGHT)
    if share < 1:
        assert not (await simulation.auditor.check(said, 1, simulation.ask)).certain
    else:
        with pytest.raises(EngineError):
            await simulation.auditor.check(said, 1, simulation.ask)
    assert simulation.auditor.audits.unchecked == 1


async def test_a_check_here_without_the_bytes_asks_a_second_donor_first() -> None:
    async with trio.open_nursery() as nursery:
        simulation = Simulation(0, 0.05, 1.0, {1})
        simulation.pool.nursery = nursery
        simulation.auditor._luck = Scripted(0.0, 0.0)
        simulation.auditor._recompute.ready = lambda work: False
        asked: list[Remote] = []

        async def ask(other: Remote) -> Answer:
            asked.append(other)
            return await simulation.ask(other)

        # They disagree: what is used is right, and nothing is left to be done later.
        found = await simulation.auditor.check(answer(simulation.remotes[1], WRONG), 7, ask)
        assert (len(asked), found.certain, simulation.auditor.pending) == (1, True, 0)
        assert len(simulation.convictions) == 1
        # They agree: it is used, and checked here behind the reply, for they may collude.
        found = await simulation.auditor.check(answer(simulation.remotes[0], RIGHT), 7, ask)
        assert (len(asked), found.certain) == (2, False)
        assert not simulation.auditor.doubts.settled(7)
        await simulation.auditor.finish()
        assert simulation.auditor.doubts.settled(7)
        assert simulation.auditor.audits.recomputed == 2


def without_bytes(share: float) -> Simulation:
    """One donor, and a machine that cannot recompute what it says."""

    def lacks(work: Work) -> ExpertRows:
        raise EngineError("nobody has them")

    simulation = Simulation(0, share, 1.0, {1})
    simulation.auditor._recompute._run = lacks
    simulation.pool.remotes = simulation.pool.remotes[:1]
    return simulation


async def test_what_cannot_be_checked_behind_a_reply_is_counted_whatever_share_is_audited_by_then() -> None:
    simulation = without_bytes(0.05)
    auditor = simulation.auditor
    auditor._recompute.ready = lambda work: False
    async with trio.open_nursery() as nursery:
        simulation.pool.nursery = nursery
        await auditor.check(answer(simulation.remotes[0], RIGHT), 7, simulation.ask)
        auditor.share = 1.0
        await auditor.finish()
    assert (auditor.pending, auditor.audits.unchecked) == (0, 1)
    assert auditor.doubts.settled(7)


async def test_checks_that_are_not_made_when_the_model_is_left_are_counted() -> None:
    simulation = Simulation(0, 0.05, 1.0, {1})
    auditor, (honest, lying) = simulation.auditor, simulation.remotes[:2]
    auditor._luck = Scripted(0.9, 0.0, 0.0)

    class Waiting(Recomputer):
        async def __call__(self, work: Work) -> ExpertRows:
            await trio.sleep_forever()
            raise AssertionError

    auditor._recompute = Waiting(lambda work: RIGHT, lambda work: False, lambda layer: FORM)

    async def silent(other: Remote) -> Answer | None:
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        simulation.pool.nursery = nursery
        nursery.start_soon(auditor.check, answer(honest, RIGHT), 7, silent)  # waits for a second answer
        nursery.start_soon(auditor.compare, answer(honest, RIGHT), answer(lying, WRONG))
        await trio.testing.wait_all_tasks_blocked()
        simulation.pool.remotes = simulation.pool.remotes[:1]
        for _ in range(2):  # behind the reply: one is being made, one waits for it
            await auditor.check(answer(honest, RIGHT), 8, simulation.ask)
        assert auditor.pending == 2
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert auditor.audits.drawn == 4
    assert auditor.audits.unchecked == 4
    assert auditor.pending == 0


async def test_a_conviction_withdraws_every_pass_that_relied_on_the_liar() -> None:
    simulation = Simulation(0, 0.05, 1.0, {1})
    auditor, (honest, lying) = simulation.auditor, simulation.remotes[:2]
    state = State([])
    state.passes, state.length = [(0, 1), (8, 2), (9, 3), (10, 4)], 11
    for number in (1, 2, 3, 4):
        auditor.rely(honest, number)
    for number in (3, 2):
        auditor.rely(lying, number)
    await auditor._settle([answer(lying, WRONG)])
    flaw = auditor.doubts.flaw(state)
    assert flaw is not None
    assert flaw.position == 8
    assert lying.name in flaw.reason
    state.passes = [(0, 1), (8, 4)]
    assert auditor.doubts.flaw(state) is None


async def test_of_two_racers_that_differ_the_one_that_was_used_is_checked_as_well() -> None:
    simulation = Simulation(0, 0.05, 1.0, {1})
    honest, lying = simulation.remotes[:2]
    await simulation.auditor.compare(answer(honest, RIGHT), answer(lying, WRONG))
    assert [conviction.donor for conviction in simulation.convictions] == [lying]


async def test_a_wrong_answer_without_a_signature_bans_here_but_proves_nothing() -> None:
    simulation = Simulation(0, 1.0, 1.0, {1})
    unsigned = replace(answer(simulation.remotes[1], WRONG), receipt=bytes(64))
    await simulation.auditor._settle([unsigned])
    assert simulation.convictions[0].proof is None
    assert "without a signature" in simulation.remotes[1].banned


def proof_of(bank: ExpertBank, profile: NumericProfile, wrong: bool) -> Proof:
    """What a donor signed about a real expert."""
    shape = bank.shape(0)
    plain = np.ones((1, shape.hidden), np.float32)
    work = Work(0, np.array([3], np.int32), np.array([0], np.int32), quantize_rows(plain))
    message, request = encode_call(Form.of(shape), 1, work, np.arange(1))
    outputs = bank.run(0, work.rows, work.expert, work.row)
    values = outputs.values + (1 if wrong else 0)
    reply = encode_outputs(ExpertRows(values.astype(np.int16), outputs.scale))
    receipt = give_receipt(
        KEYS[0],
        profile=profile.digest,
        request=request_digest(message, request),
        reply=reply_digest(UNSIGNED, reply),
    )
    return Proof(KEYS[0].key, profile, message, request, reply, receipt.signature)


async def test_a_tracker_believes_only_what_it_recomputed(oracle: Path) -> None:
    bank = open_experts(DirectorySource(oracle / "olmoe"), "auto")
    profile = profile_of(b"\7" * 32, "auto")
    executor = Executor(KEYS[1])
    judge = ExecutorVerifier(lambda: executor)
    lie, truth = proof_of(bank, profile, True), proof_of(bank, profile, False)
    about = (KEYS[0].key, profile.root, profile.digest)
    with pytest.raises(NobodyToAsk):
        await judge(*about, lie.encode())
    executor.add(whole_bank(profile, bank, layout_of(bank)))
    assert (await judge(*about, lie.encode())).guilty
    verdict = await judge(*about, truth.encode())
    assert (verdict.guilty, verdict.reason) == (False, "its answer for layer 0 is right")
    for forged, reason in (
        (replace(lie, receipt=bytes(64)), "signature"),
        (replace(truth, reply=lie.reply), "signature"),
        (replace(lie, donor=KEYS[1].key), "another peer"),
        (replace(lie, profile=profile_of(b"\1" * 32, "auto")), "another peer"),
        (replace(lie, message=RunExperts(1, 99, 1)), "layer 99"),
    ):
        verdict = await judge(*about, forged.encode())
        assert not verdict.guilty
        assert reason in verdict.reason
    assert not (await judge(*about, b"no proof")).guilty

    @asynccontextmanager
    async def nobody(_: object) -> AsyncIterator[Any]:
        raise BadSignature(signer=b"")
        yield

    with pytest.raises(NobodyToAsk):
        await AskingVerifier([KEYS[2].key], nobody)(*about, lie.encode())


def test_a_proof_is_read_back_as_it_was_and_nothing_else_is_read() -> None:
    message, request = REQUEST
    proof = Proof(
        KEYS[0].key, PROFILE, message, request, encode_outputs(WRONG), answer(replica(0), WRONG).receipt
    )
    again = Proof.parse(proof.encode())
    assert again == proof
    again.check_signature()
    data = proof.encode()
    for cut in range(0, len(data), 7):
        with pytest.raises(BadProof):
            Proof.parse(data[:cut])
    with pytest.raises(BadSignature):
        replace(proof, reply=encode_outputs(RIGHT)).check_signature()


async def test_a_tracker_without_a_model_asks_an_executor_it_trusts(oracle: Path) -> None:
    bank = open_experts(DirectorySource(oracle / "olmoe"), "auto")
    profile = profile_of(ROOT, "auto")
    lie, truth = proof_of(bank, profile, True), proof_of(bank, profile, False)
    about = (KEYS[0].key, profile.root, profile.digest)
    judge = Donor(9)
    async with trio.open_nursery() as nursery:
        await nursery.start(judge.serve, bank)

        opened: list[rpc.Peer] = []

        @asynccontextmanager
        async def dial(key: PeerKey) -> AsyncIterator[rpc.Peer]:
            assert key == judge.key
            address = Address(judge.contact.host, judge.contact.port)
            async with rpc.connect(address, KEYS[3], expected_key=key) as peer:
                opened.append(peer)
                yield peer

        verifier = AskingVerifier([KEYS[0].key, judge.key], dial)
        assert (await verifier(*about, lie.encode())).guilty
        assert not (await verifier(*about, truth.encode())).guilty
        unsigned = replace(lie, receipt=bytes(64))
        assert "signature" in (await verifier(*about, unsigned.encode())).reason
        with pytest.raises(NobodyToAsk):  # nobody judges itself
            await AskingVerifier([KEYS[0].key], dial)(*about, lie.encode())
        assert len(opened) == 2
        assert not any(peer.is_open for peer in opened)
        nursery.cancel_scope.cancel()
