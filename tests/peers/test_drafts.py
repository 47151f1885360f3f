"""Guessed tokens that donors compute along with the newest: fewer rounds, the same reply."""

from functools import partial
from pathlib import Path

import pytest
import trio

from engine.drafts import Drafter
from engine.generate import generate
from engine.models import Model
from engine.reply import Reply
from swarm.peers.remote import RemoteExperts, Rules
from tests.engine.drafters import Told
from tests.peers.donors import PROMPT, Donor, Swarm, every, liar, swarm_of

TOKENS = 16
LAYERS = 4  # of the reference folders


async def made(swarm: Swarm, drafter: Drafter | None) -> Reply:
    """A reply by the donors of a swarm, with its rounds of reading the prompt not counted."""

    def run(model: Model, experts: RemoteExperts) -> Reply:
        reply = Reply(list(PROMPT), model.new_state(), max_tokens=TOKENS, drafter=drafter)
        list(generate(model, experts, reply))
        return reply

    return await trio.to_thread.run_sync(run, swarm.engine.model, swarm.experts)


@pytest.mark.parametrize("mistakes", [0.0, 0.4])
@pytest.mark.parametrize("name", ["olmoe", "qwen3_moe", "qwen3_next"])
async def test_guesses_save_rounds(oracle: Path, name: str, mistakes: float) -> None:
    async with swarm_of(oracle / name, [Donor(1), Donor(2)], Rules.parse("off", 0.05)) as swarm:
        expected = swarm.local(TOKENS)
        reply = await made(swarm, Told([*PROMPT, *expected], mistakes))
        assert reply.generated == expected
        assert reply.stats.guessed_right > 0
        assert swarm.experts.stats.rounds < LAYERS * TOKENS * 0.9


async def test_who_wants_no_guesses_has_none(oracle: Path) -> None:
    async with swarm_of(oracle / "olmoe", [Donor(1)], Rules.parse("off", 0.05, draft=False)) as swarm:
        expected = swarm.local(TOKENS)
        reply = await made(swarm, Told([*PROMPT, *expected], 0.0))
        assert (reply.generated, reply.stats.guessed_tokens) == (expected, 0)
        assert swarm.experts.stats.rounds == LAYERS * TOKENS


@pytest.mark.parametrize("luck", range(3))
async def test_lies_about_guesses_do_not_last(oracle: Path, luck: int) -> None:
    lying = Donor(1, twist=partial(lambda run, rate: liar(run, every(rate), loud=True), rate=4))
    async with swarm_of(oracle / "olmoe", [lying], Rules.parse("off", 0.3)) as swarm:
        expected = swarm.local(TOKENS)
        reply = await made(swarm, Told([*PROMPT, *expected], 0.2, luck))
        assert reply.generated == expected
        assert [conviction.donor.key for conviction in swarm.convictions] == [lying.key]
