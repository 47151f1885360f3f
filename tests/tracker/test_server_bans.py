"""Bans at a tracker: by proof only, kept, and asked for so often."""

import pytest

from swarm.wire.holdings import IndexSet
from swarm.wire.messages.tracker import (
    GetProof,
    LiarJudged,
    ListBans,
    ListModels,
    Models,
    RegisterPeer,
    ReportLiar,
)
from swarm.wire.rpc import Busy
from tests.tracker.kit import keys, published
from tests.tracker.world import PROFILE, find, hold, world
from tracker.catalogue import UnknownModel
from tracker.judge import Banned, UnknownProof, Verdict
from tracker.store import MemoryStore


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
