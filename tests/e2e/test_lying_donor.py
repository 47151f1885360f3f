"""A donor that lies in mid reply: named, banned by the tracker that recomputed its answer, and left out."""

import json
from pathlib import Path
from typing import cast

import trio

from engine.expert_bank import ExpertBank
from swarm.peers.banks import layout_of, open_experts
from swarm.peers.executor import Bank, Executor, profile_of
from swarm.peers.membership import Listening, Swarming, member
from swarm.peers.session import join
from swarm.peers.settings import Home
from swarm.peers.target import parse_target
from swarm.trust.identity import Identity
from swarm.wire.holdings import IndexSet
from tests.e2e.processes import serving, swarm
from tests.e2e.test_donors import Asker
from tests.peers.donors import Twisted, every, liar


async def lie_while(invite: str, folder: Path, work: object, relayed: bool = False) -> bytes:
    """A donor with every expert that lies at each fifth call, while `work` runs; gives its key."""
    identity = Identity(b"\x66" * 32)
    place = Home(folder / "data", folder / "cache")
    async with join(parse_target(invite), place, False, identity) as session:
        model = await session.open_model()
        bank = await trio.to_thread.run_sync(open_experts, model.source, "auto")
        executor = Executor(identity)
        layout = layout_of(bank)
        twisted = cast(ExpertBank, Twisted(bank, liar(bank.run, every(5), loud=True)))
        profile = profile_of(model.signed.manifest.root, "auto")
        executor.add(Bank(profile, twisted, layout, IndexSet.full(layout.total)))
        where = Listening("127.0.0.1", local=True, relay_only=relayed)
        swarming = Swarming(session, identity, None)
        async with member(swarming, where, executor.handlers(), executor):
            await trio.to_thread.run_sync(work)  # type: ignore[arg-type]
    assert executor.done.calls > 4
    return identity.key


async def test_a_lie_is_proven_to_everybody(oracle: Path, tmp_path: Path) -> None:
    model = oracle / "olmoe"
    asker = await trio.to_thread.run_sync(Asker, tmp_path / "asker", model)

    def ask() -> None:
        with_serve = asker.same(served.invite, "--audit", "100%", "--hedge", "off")
        assert len({hop["donor"] for line in with_serve for hop in line["hops"]}) == 2  # type: ignore[attr-defined]

    with serving(tmp_path / "host", model) as served:
        await trio.to_thread.run_sync(served.running.event, "executing")
        key = await lie_while(served.invite, tmp_path / "liar", ask)
        assert f"donor {key.hex()[:8]} is banned: it gave a wrong answer" in asker.said
        home = tmp_path / "asker" / "home"
        listed = await trio.to_thread.run_sync(swarm, home, "audit", "bans", served.invite, "--json")
        (ban,) = [json.loads(line) for line in listed.stdout.splitlines()]
        assert ban["donor"] == key.hex()
        assert "signed a wrong answer" in ban["reason"]
        assert ban["kept"] == "here"
        elsewhere = await trio.to_thread.run_sync(
            swarm, tmp_path / "stranger", "audit", "bans", served.invite, "--json"
        )
        assert json.loads(elsewhere.stdout)["kept"] == "tracker"
        for reader in (home, tmp_path / "stranger"):  # who found it, and who asks the tracker for it
            shown = await trio.to_thread.run_sync(
                swarm, reader, "audit", "show", ban["proof"], served.invite, "--local", str(model), "--json"
            )
            facts = json.loads(shown.stdout)
            assert (facts["donor"], facts["wrong"], facts["proof"]) == (key.hex(), True, ban["proof"])
        (kept,) = (home / "proofs").iterdir()
        read = await trio.to_thread.run_sync(swarm, home, "audit", "show", str(kept))
        assert f"Donor {key.hex()}" in read.stdout
        assert "was not recomputed" in read.stdout


async def test_a_liar_behind_the_relay_is_left_out_too(oracle: Path, tmp_path: Path) -> None:
    model = oracle / "olmoe"
    asker = await trio.to_thread.run_sync(Asker, tmp_path / "asker", model)

    def ask() -> None:
        asker.same(served.invite, "--audit", "100%", "--hedge", "off")

    with serving(tmp_path / "host", model, "--no-exec") as served:
        key = await lie_while(served.invite, tmp_path / "liar", ask, relayed=True)
        assert f"donor {key.hex()[:8]} is banned: it gave a wrong answer" in asker.said
