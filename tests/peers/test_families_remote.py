"""Every family with all its routed experts on two donors: the bits are those of local experts.

The folders are those of `tests.engine.test_families`, so a family listed there is tested here, too. Rows are
compared bit for bit: the prompt at every position in one pass, and each step of the continuation.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio

from engine.arrays import F32, I32
from engine.engine import Engine
from engine.experts import Experts
from engine.generate import greedy, logits
from engine.kernels import ExpertRows, Rows
from engine.numerics import Weights
from engine.source import DirectorySource
from swarm.peers.banks import layout_of, open_experts
from tests.engine.reference import golden
from tests.engine.test_families import FOLDERS
from tests.peers.donors import Donor, Run, swarm_of

TOKENS = 12


def expert_count(folder: Path) -> int:
    """How many routed experts a checkpoint has, all layers together."""
    with DirectorySource(folder) as source:
        bank = open_experts(source, "native")
        bank.close()
        return layout_of(bank).total


def answer(engine: Engine, experts: Experts, prompt: list[int]) -> tuple[list[int], F32]:
    """Greedy tokens, and the logits at each position of the prompt and at each step."""
    at_prompt = logits(engine.model, experts, prompt)
    tokens, at_steps = greedy(engine.model, experts, prompt, TOKENS)
    return tokens, np.concatenate([at_prompt, at_steps])


@pytest.mark.parametrize("weights", ["native", "auto", "q8"])
@pytest.mark.parametrize("name", FOLDERS)
async def test_experts_on_two_donors_give_the_same_bits(oracle: Path, name: str, weights: Weights) -> None:
    folder, prompt = oracle / name, golden(oracle / name).prompt
    total = expert_count(folder)
    donors = [Donor(1, range(0, total, 2)), Donor(2, range(1, total, 2))]
    async with swarm_of(folder, donors, weights=weights) as swarm:
        tokens, bits = answer(swarm.engine, swarm.engine.experts, prompt)
        found = await trio.to_thread.run_sync(partial(answer, swarm.engine, swarm.experts, prompt))
        stats = swarm.experts.stats
    assert found[0] == tokens
    np.testing.assert_array_equal(found[1].view(np.uint32), bits.view(np.uint32))
    assert stats.remote_calls == stats.calls > 0
    assert len(stats.by_donor) == len(donors)
    assert stats.failovers == stats.hedges == 0


async def test_latent_experts_are_sent_latent_rows(oracle: Path) -> None:
    widths = set()

    def watched(run: Run) -> Run:
        def watching(layer: int, rows: Rows | F32, *pairs: I32) -> ExpertRows:
            widths.add(rows.cols if isinstance(rows, Rows) else rows.shape[1])
            return run(layer, rows, *pairs)

        return watching

    async with swarm_of(oracle / "kimi_k3", [Donor(1, twist=watched)]) as swarm:
        await swarm.tokens(1)
        whole = swarm.engine.config.hidden
    (latent,) = widths
    assert latent < whole
