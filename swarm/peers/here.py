"""Experts in this process's memory, as one more place where calls may run.

Nothing is read for that: what is not in memory runs here only when nobody else can be asked for it.
"""

from collections.abc import Collection

import trio

from engine.expert_bank import ExpertBank
from engine.kernels import ExpertRows
from swarm.peers.calls import Work
from swarm.peers.choice import Candidate
from swarm.peers.pace import Pace


class Here:
    """See the module. Lives in trio, but for `run`."""

    def __init__(self, bank: ExpertBank) -> None:
        self.pace = Pace()
        """Of runs of what was in memory."""
        self._bank = bank

    def holds_all(self, layer: int, experts: Collection[int]) -> bool:
        """Whether all of these are in memory."""
        return all(self._bank.has(layer, expert) for expert in experts)

    def takes_s(self, pairs: int) -> float:
        """What a run should take; nothing while that is unknown."""
        return self.pace.expected_s(pairs)

    def candidate(self, layer: int, experts: Collection[int]) -> Candidate | None:
        """What `choose` has to know; None while it is unknown what a run takes, or with none in memory.

        This machine has other work, so it is a last resort.
        """
        if not self.pace.measured:
            return None
        held = sum(1 << expert for expert in set(experts) if self._bank.has(layer, expert))
        pace = self.pace
        return (
            Candidate(held, held, pace.call_s, pace.pair_s, last_resort=True, measured=True) if held else None
        )

    def run(self, work: Work) -> ExpertRows:
        """The outputs of some pairs. Blocks. Raises EngineError."""
        return self._bank.run(work.layer, work.rows, work.expert, work.row)

    async def outputs(self, work: Work) -> ExpertRows:
        """The same without blocking, and timed where nothing has to be read."""
        in_memory = self.holds_all(work.layer, set(work.expert.tolist()))
        started = trio.current_time()
        outputs = await trio.to_thread.run_sync(self.run, work)
        if in_memory:
            self.pace.observe(len(work), trio.current_time() - started)
        return outputs
