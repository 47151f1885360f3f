"""Liars that are convicted after their answers were used: the reply goes on, with the right tokens."""

import random
from functools import partial
from pathlib import Path

import pytest
import trio

from engine.batch import ReplyBatch
from engine.experts import Experts
from engine.models import Model
from engine.reply import Done, Reply, Retracted, Token
from engine.sampling import Sampling
from swarm.peers.remote import Rules
from swarm.peers.summary import summary
from tests.peers.donors import PROMPT, Donor, Run, every, liar, swarm_of

DEFAULT = Rules.parse("off", 0.05)
LAYERS = 4  # of the reference folders; a single donor is asked once a layer


class Drawn(random.Random):
    """Audits the calls of these numbers, counted from 1, and each of them here."""

    def __init__(self, *calls: int) -> None:
        super().__init__(0)
        self._calls, self._call, self._here = set(calls), 0, False

    def random(self) -> float:
        if self._here:
            self._here = False
            return 0.0
        self._call += 1
        self._here = self._call in self._calls
        return 0.0 if self._here else 0.99


def loud(run: Run, rate: int) -> Run:
    return liar(run, every(rate), loud=True)


@pytest.mark.parametrize(
    ("rate", "audited"),
    [
        (1, 1),
        (1, 3 * LAYERS + 2),
        (1, 16 * LAYERS),
        (10, 2 * LAYERS + 2),
        (10, 10 * LAYERS),
        (10, 15 * LAYERS),
    ],
)
async def test_the_only_donor_lies_and_the_reply_goes_on_here(oracle: Path, rate: int, audited: int) -> None:
    lying = Donor(1, twist=partial(loud, rate=rate))
    async with swarm_of(oracle / "olmoe", [lying], DEFAULT, luck=Drawn(audited)) as swarm:
        tokens = await swarm.tokens(16)
        assert [conviction.donor.key for conviction in swarm.convictions] == [lying.key]
        assert f"donor {lying.key.hex()[:8]} is banned: it gave a wrong answer" in summary(swarm.experts)
        assert tokens == swarm.local(16)


async def test_a_lie_that_nobody_audits_is_what_the_others_catch(oracle: Path) -> None:
    """The liar of these tests does change tokens, or they would show nothing."""
    async with swarm_of(
        oracle / "olmoe", [Donor(1, twist=partial(loud, rate=10))], DEFAULT, luck=Drawn()
    ) as swarm:
        assert await swarm.tokens(16) != swarm.local(16)


def replies(
    model: Model, experts: Experts, temperature: float, count: int = 3
) -> list[tuple[list[int], int, str]]:
    """Replies made together: tokens as told, times taken back, and why they ended."""
    company = ReplyBatch(model, experts)
    made = [
        Reply(
            PROMPT[number:], model.new_state(), Sampling(temperature, seed=number), max_tokens=8 + 3 * number
        )
        for number in range(count)
    ]
    tokens: list[list[int]] = [[] for _ in made]
    retracted, ended = [0] * len(made), [""] * len(made)
    for reply in made:
        company.add(reply)
    while len(company):
        for event in company.step():
            number = made.index(event.reply)
            match event:
                case Token(_, token):
                    tokens[number].append(token)
                case Retracted(_, kept, reason):
                    assert "lied" in reason
                    del tokens[number][kept:]
                    retracted[number] += 1
                case Done(_, why):
                    ended[number] = why
                case _:
                    pass
    assert tokens == [reply.generated for reply in made]
    return list(zip(tokens, retracted, ended, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("audited", [3 * LAYERS, 8 * LAYERS])
async def test_all_sequences_of_a_batch_go_on(oracle: Path, temperature: float, audited: int) -> None:
    lying = Donor(1, twist=partial(loud, rate=1))
    async with swarm_of(oracle / "olmoe", [lying], DEFAULT, luck=Drawn(audited)) as swarm:
        model = swarm.engine.model
        found = await trio.to_thread.run_sync(replies, model, swarm.experts, temperature)
        right = replies(model, swarm.engine.experts, temperature)
        assert len(swarm.convictions) == 1
        assert [(tokens, why) for tokens, _, why in found] == [(tokens, why) for tokens, _, why in right]
        assert all(times == 1 for _, times, _ in found)


@pytest.mark.parametrize("rate", [1, 10])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_other_donors_take_over(oracle: Path, rate: int, temperature: float) -> None:
    """Which answers are audited depends on who is quicker; that a lie is among them, with so many, on nothing."""
    donors = [Donor(1, twist=partial(loud, rate=rate)), Donor(2), Donor(3)]
    rules = Rules.parse("off", 0.5)
    async with swarm_of(oracle / "olmoe", donors, rules, luck=random.Random(3)) as swarm:
        model, liars = swarm.engine.model, donors[0]
        right = replies(model, swarm.engine.experts, temperature, 1)
        with trio.fail_after(60):
            while not swarm.convictions:
                found = await trio.to_thread.run_sync(replies, model, swarm.experts, temperature, 1)
        assert [conviction.donor.key for conviction in swarm.convictions] == [liars.key]
        assert [(tokens, why) for tokens, _, why in found] == [(tokens, why) for tokens, _, why in right]
        asked = liars.asked
        assert await swarm.tokens(3) == swarm.local(3)
        assert liars.asked == asked
