"""Telling the tracker of donors that lied, with the proof, which it verifies itself."""

from pathlib import Path

import trio

from swarm.errors import SwarmError
from swarm.peers.audit import Conviction
from swarm.peers.proof import Proof
from swarm.peers.proofs import keep_proof
from swarm.peers.tracking import TrackerClient, ask_again
from swarm.wire.messages.tracker import LiarJudged, ReportLiar


class Reports:
    """Those of a session. Proofs are kept in a folder as well, whatever becomes of the tracker."""

    def __init__(self, tracker: TrackerClient, folder: Path, nursery: trio.Nursery) -> None:
        self._tracker = tracker
        self._folder = folder
        self._nursery = nursery
        self._pending = 0
        self._settled = trio.Event()

    def add(self, conviction: Conviction) -> None:
        """Reports a donor unless there is no proof; returns at once. What became of it is the donor's trouble."""
        if conviction.proof is not None:
            self._pending += 1
            self._nursery.start_soon(self._report, conviction, conviction.proof)

    async def finish(self) -> None:
        """Waits until all have been told; the caller owns the deadline."""
        while self._pending:
            await self._settled.wait()

    async def _report(self, conviction: Conviction, proof: Proof) -> None:
        content, profile = proof.encode(), proof.profile
        try:
            await trio.to_thread.run_sync(keep_proof, self._folder, content)
            report = ReportLiar(proof.donor, profile.root, profile.digest)
            judged = (await ask_again(self._tracker, report, LiarJudged, content)).message
        except (SwarmError, OSError) as error:
            conviction.donor.trouble += f"; the tracker could not be told: {error}"
        else:
            conviction.donor.trouble += f"; the tracker: {judged.reason}"
        finally:
            self._pending -= 1
            self._settled.set()
            self._settled = trio.Event()
