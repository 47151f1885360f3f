"""Bans: an accusation counts only when the tracker itself has verified its proof.

How a proof is verified is not known here: whoever runs the tracker gives a verifier, which recomputes what
the accused signed. Bans are kept with their proofs, so that everyone can verify them again.

Anybody may report, and a report holds its proof's memory for as long as verifying it takes. So none waits for
others: beyond a few at a time it is turned away with a hint, and who reports asks again.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import trio
from blake3 import blake3

from swarm.errors import SwarmError
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import (
    MAX_PROOF_BYTES,
    Ban,
    Bans,
    GetProof,
    LiarJudged,
    ListBans,
    Proof,
    ReportLiar,
)
from swarm.wire.rpc import Buffer, Busy, Handlers, Peer
from tracker.clock import Clock
from tracker.quota import Quota, Rate
from tracker.registry import bounded_network
from tracker.store import Store, StoredBan

MOST_BANS_LISTED = 64
MOST_REMEMBERED = 4096
VERIFY_S = 120.0
MOST_VERIFYING = 2
MOST_VERIFYING_BYTES = MAX_PROOF_BYTES
"""Of all proofs that are verified at the same time; a server's memory has room for another that comes in."""
BUSY_HINT_S = 2.0
REPORTS_A_KEY = Rate(per_second=1 / 60, burst=10)
REPORTS_A_NETWORK = Rate(per_second=1 / 10, burst=60)


class Verdict(NamedTuple):
    """What a proof shows."""

    guilty: bool
    reason: str


Verifier: TypeAlias = Callable[[PeerKey, bytes, bytes, bytes], Awaitable[Verdict]]
"""(accused, manifest root, profile, proof) -> verdict; a SwarmError means that it could not be verified."""


class Banned(SwarmError):
    """Peer {peer} is banned here: {reason}. The proof can be read with `swarm audit show`."""


class UnknownProof(SwarmError):
    """The tracker has no proof {digest}."""


class Judge:
    """The handlers of ReportLiar, ListBans and GetProof; asks `on_ban` to forget who was banned."""

    def __init__(
        self, store: Store, clock: Clock, verifier: Verifier | None, on_ban: Callable[[PeerKey], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._verifier = verifier
        self._on_ban = on_ban
        self._bans: list[StoredBan] = []
        self._reasons: dict[PeerKey, str] = {}
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._reports = Quota(REPORTS_A_KEY)
        self._reports_a_network = Quota(REPORTS_A_NETWORK)
        self._verifying: list[int] = []
        """The lengths of the proofs that are being verified."""

    @property
    def count(self) -> int:
        """How many bans there are."""
        return len(self._bans)

    def handlers(self) -> Handlers:
        """What to answer, by the type of the message."""
        return {ReportLiar: self.report, ListBans: self.list, GetProof: self.proof}

    async def load(self) -> None:
        """Reads what the store keeps. UnusableStore."""
        self._bans = await trio.to_thread.run_sync(self._store.bans)
        self._reasons = {ban.key: ban.reason for ban in self._bans}

    def check(self, key: PeerKey) -> None:
        """Banned when a peer is."""
        reason = self._reasons.get(key)
        if reason is not None:
            raise Banned(peer=key, reason=reason)

    async def report(self, caller: Peer, message: ReportLiar, payload: Buffer) -> tuple[LiarJudged, bytes]:
        """Verifies a proof and bans the accused when it holds."""
        if message.accused in self._reasons:
            return LiarJudged(True, self._reasons[message.accused]), b""
        if self._verifier is None:
            return LiarJudged(False, "this tracker has no means to verify a proof"), b""
        with self._room(caller, len(payload)):
            return await self._judge(message, bytes(payload)), b""

    @contextmanager
    def _room(self, caller: Peer, proof_bytes: int) -> Iterator[None]:
        """Counts a proof while it is verified. Busy when too much is, or when somebody reports too often."""
        crowded = len(self._verifying) >= MOST_VERIFYING
        if crowded or (self._verifying and sum(self._verifying) + proof_bytes > MOST_VERIFYING_BYTES):
            raise Busy(what="The tracker", retry_after_s=BUSY_HINT_S)
        now_s = self._clock.monotonic_s()
        wait_s = self._reports.take(caller.key, now_s)
        if (network := bounded_network(caller.address)) is not None:
            wait_s = max(wait_s, self._reports_a_network.take(network, now_s))
        if wait_s:
            raise Busy(what="The tracker", retry_after_s=round(wait_s, 1))
        self._verifying.append(proof_bytes)
        try:
            yield
        finally:
            self._verifying.remove(proof_bytes)

    async def _judge(self, message: ReportLiar, proof: bytes) -> LiarJudged:
        case = blake3(message.accused + message.root + message.profile + proof).digest()
        if case in self._refused:
            return LiarJudged(False, self._refused[case])
        verdict = await self._verify(message, proof)
        if message.accused in self._reasons:
            return LiarJudged(True, self._reasons[message.accused])
        reason = verdict.reason[:500]
        if not verdict.guilty:
            self._refused[case] = reason
            if len(self._refused) > MOST_REMEMBERED:
                self._refused.popitem(last=False)
            return LiarJudged(False, reason)
        await self._ban(message.accused, reason, proof)
        return LiarJudged(True, reason)

    async def _verify(self, message: ReportLiar, proof: bytes) -> Verdict:
        assert self._verifier is not None
        with trio.move_on_after(VERIFY_S):
            try:
                return await self._verifier(message.accused, message.root, message.profile, proof)
            except SwarmError as error:
                raise Busy(what=f"Verifying the proof ({error})", retry_after_s=60) from error
        raise Busy(what=f"Verifying the proof took {VERIFY_S:g} s; the tracker", retry_after_s=60)

    async def _ban(self, key: PeerKey, reason: str, proof: bytes) -> None:
        number = self._bans[-1].number + 1 if self._bans else 1
        ban = StoredBan(number, key, reason, blake3(proof).digest(), int(self._clock.unix_s()))
        # Known at once, so that two reports do not take the same number; stored before anybody is told.
        self._bans.append(ban)
        self._reasons[key] = reason
        self._on_ban(key)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._store.ban, ban, proof)

    async def list(self, caller: Peer, message: ListBans, payload: Buffer) -> tuple[Bans, bytes]:
        """The bans after a number."""
        later = [ban for ban in self._bans if ban.number > message.after]
        told = [
            Ban(ban.number, ban.key, ban.reason, ban.digest, ban.unix_s) for ban in later[:MOST_BANS_LISTED]
        ]
        return Bans(tuple(told), more=len(later) > len(told)), b""

    async def proof(self, caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
        """A proof by its digest."""
        proof = await trio.to_thread.run_sync(self._store.proof, message.digest)
        if proof is None:
            raise UnknownProof(digest=message.digest)
        return Proof(), proof
