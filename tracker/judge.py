"""Bans: an accusation counts only when the tracker itself has verified its proof.

How a proof is verified is not known here: whoever runs the tracker gives a verifier, which recomputes what
the accused signed. Bans are kept with their proofs, so that everyone can verify them again, for as long as there
is room for those (`tracker.bans`); a ban without its proof stays one, with the digest that tells the proof from
another when somebody else has kept it.

Anybody may report, and a report holds its proof's memory for as long as verifying it takes. So none waits for
others: beyond a few at a time it is turned away with a hint, and who reports asks again.
"""

import time
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
from tracker.bans import Bans as BanList
from tracker.bans import KeptProof, Proofs
from tracker.clock import Clock
from tracker.quota import Quotas, Rate
from tracker.registry import bounded_network
from tracker.store import Dropped, Store, StoredBan

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


class ProofDropped(SwarmError):
    """This tracker keeps the proof {digest} no longer: it has room for so many. Peer {peer} was banned on {day}
    and stays banned ({reason}); whoever reported it may have the proof as a file, of that BLAKE3 digest."""


class Judge:
    """The handlers of ReportLiar, ListBans and GetProof; asks `on_ban` to forget who was banned."""

    def __init__(
        self, store: Store, clock: Clock, verifier: Verifier | None, on_ban: Callable[[PeerKey], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._verifier = verifier
        self._on_ban = on_ban
        self._bans = BanList()
        self._proofs = Proofs()
        self._banning = trio.Lock()
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._reports = Quotas(REPORTS_A_KEY, REPORTS_A_NETWORK)
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
        """Reads what the store keeps, and drops what there is no room for. UnusableStore."""
        lengths = await trio.to_thread.run_sync(self._store.proof_bytes)
        bans, proofs = list[int](), list[int]()
        for ban in await trio.to_thread.run_sync(self._store.bans):
            bans += [one.number for one in self._bans.add(ban)]
            if ban.number in lengths:
                proofs += self._proofs.add(KeptProof(ban.number, ban.root, None, lengths[ban.number]))
        self._proofs.forget(bans)
        if bans or proofs:
            await trio.to_thread.run_sync(self._store.drop, Dropped(bans, proofs))

    def check(self, key: PeerKey) -> None:
        """Banned when a peer is."""
        ban = self._bans.came(key)
        if ban is not None:
            raise Banned(peer=key, reason=ban.reason)

    async def report(self, caller: Peer, message: ReportLiar, payload: Buffer) -> tuple[LiarJudged, bytes]:
        """Verifies a proof and bans the accused when it holds."""
        if (ban := self._bans.of(message.accused)) is not None:
            return LiarJudged(True, ban.reason), b""
        if self._verifier is None:
            return LiarJudged(False, "this tracker has no means to verify a proof"), b""
        with self._room(caller, len(payload)):
            return await self._judge(caller, message, bytes(payload)), b""

    @contextmanager
    def _room(self, caller: Peer, proof_bytes: int) -> Iterator[None]:
        """Counts a proof while it is verified. Busy when too much is, or when somebody reports too often."""
        crowded = len(self._verifying) >= MOST_VERIFYING
        if crowded or (self._verifying and sum(self._verifying) + proof_bytes > MOST_VERIFYING_BYTES):
            raise Busy(what="The tracker", retry_after_s=BUSY_HINT_S)
        network = bounded_network(caller.address)
        wait_s = self._reports.take(caller.key, network, self._clock.monotonic_s())
        if wait_s:
            raise Busy(what="The tracker", retry_after_s=round(wait_s, 1))
        self._verifying.append(proof_bytes)
        try:
            yield
        finally:
            self._verifying.remove(proof_bytes)

    async def _judge(self, caller: Peer, message: ReportLiar, proof: bytes) -> LiarJudged:
        case = blake3(message.accused + message.root + message.profile + proof).digest()
        if case in self._refused:
            return LiarJudged(False, self._refused[case])
        verdict = await self._verify(message, proof)
        reason = verdict.reason[:500]
        if not verdict.guilty:
            self._refused[case] = reason
            if len(self._refused) > MOST_REMEMBERED:
                self._refused.popitem(last=False)
            return LiarJudged(False, reason)
        # One at a time: what makes room for one ban is known before there is another.
        with trio.CancelScope(shield=True):
            async with self._banning:
                await self._ban(message, reason, proof, bounded_network(caller.address))
        return LiarJudged(True, reason)

    async def _verify(self, message: ReportLiar, proof: bytes) -> Verdict:
        assert self._verifier is not None
        with trio.move_on_after(VERIFY_S):
            try:
                return await self._verifier(message.accused, message.root, message.profile, proof)
            except SwarmError as error:
                raise Busy(what=f"Verifying the proof ({error})", retry_after_s=60) from error
        raise Busy(what=f"Verifying the proof took {VERIFY_S:g} s; the tracker", retry_after_s=60)

    async def _ban(self, message: ReportLiar, reason: str, proof: bytes, network: str | None) -> None:
        """Bans who was found guilty by a report from a network, unless another report was quicker."""
        key, root = message.accused, message.root
        if self._bans.of(key) is not None:
            return
        number, digest = self._bans.next_number, blake3(proof).digest()
        ban = StoredBan(number, key, reason, digest, int(self._clock.unix_s()), root)
        bans = [one.number for one in self._bans.add(ban)]
        self._proofs.forget(bans)
        proofs = self._proofs.add(KeptProof(number, root, network, len(proof)))
        self._on_ban(key)
        await trio.to_thread.run_sync(self._store.ban, ban, proof, Dropped(bans, proofs))

    async def list(self, caller: Peer, message: ListBans, payload: Buffer) -> tuple[Bans, bytes]:
        """The bans after a number."""
        found, more = self._bans.after(message.after, MOST_BANS_LISTED)
        told = [
            Ban(ban.number, ban.key, ban.reason, ban.digest, ban.unix_s, ban.number in self._proofs)
            for ban in found
        ]
        return Bans(tuple(told), more), b""

    async def proof(self, caller: Peer, message: GetProof, payload: Buffer) -> tuple[Proof, bytes]:
        """A proof by its digest."""
        ban = self._bans.with_proof(message.digest)
        if ban is None:
            raise UnknownProof(digest=message.digest)
        proof = None
        if ban.number in self._proofs:
            proof = await trio.to_thread.run_sync(self._store.proof, message.digest)
        if proof is None:
            day = time.strftime("%Y-%m-%d", time.gmtime(ban.unix_s))
            raise ProofDropped(digest=message.digest, peer=ban.key, day=day, reason=ban.reason)
        return Proof(), proof
