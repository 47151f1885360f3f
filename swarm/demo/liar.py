"""A compute donor that lies, for demonstrations: it holds what it is told to, and one number of each answer is wrong.

    python -m swarm.demo.liar INVITE

What happens to it is what the demonstration shows. It prints the events of an honest donor.
"""

import sys
from typing import cast

import numpy as np
import trio

from engine.arrays import F32, I32
from engine.expert_bank import ExpertBank
from engine.kernels import ExpertRows, Rows
from swarm.cli.donating import listening_at
from swarm.cli.hosting import until_signalled
from swarm.cli.output import emit_json
from swarm.peers.donor import ComputeDonor, Lending, Offer
from swarm.peers.executor import Executor
from swarm.peers.membership import Swarming, member
from swarm.peers.session import join
from swarm.peers.settings import home
from swarm.peers.target import parse_target
from swarm.trust.identity import Identity

RAM_BYTES = 200_000_000


class LyingBank:
    """Experts whose first output is a little off; in all else the bank it wraps."""

    def __init__(self, honest: ExpertBank) -> None:
        self._honest = honest

    def __getattr__(self, name: str) -> object:
        return getattr(self._honest, name)

    def run(self, layer: int, rows: Rows | F32, expert: I32, row: I32) -> ExpertRows:
        """What the honest bank gives, with one number changed."""
        outputs = self._honest.run(layer, rows, expert, row)
        values = np.array(outputs.values)
        if values.size:
            values.flat[0] += 1
        return ExpertRows(values, outputs.scale)


async def lie(invite: str) -> None:
    """Lends lies until a signal comes."""
    target, paths = parse_target(invite), home()
    identity = Identity.load_or_create(paths.donor_key("compute"))
    async with until_signalled() as ended, join(target, paths, False, identity) as session:
        model = await session.open_model(None)
        executor = Executor(identity)

        def tell(now: Lending) -> None:
            emit_json({"event": "lending", "ready": now.ready, "assigned": now.assigned, "state": now.state})

        donor = ComputeDonor(session, model, Offer(RAM_BYTES), executor, Lending(on_change=tell))
        await donor.open()
        donor.bank.experts = cast("ExpertBank", LyingBank(donor.bank.experts))
        place = listening_at("127.0.0.1", 0, None, False)
        async with (
            member(Swarming(session, identity, target.token), place, executor.handlers(), executor) as (
                announcer,
                seen,
            ),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(donor.run, announcer, seen)
            await ended.wait()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(lie, sys.argv[1])
