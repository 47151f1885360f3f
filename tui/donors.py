"""What donors of compute did and hold, for the user: read from the engine's remote experts, never asked over
the network."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from swarm.peers.partner import Remote
from swarm.peers.pool import Pool
from swarm.peers.remote import RemoteExperts
from swarm.peers.replication import count_replicas
from swarm.units import format_share
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from tui.messages import Notice, NoticeKind
from tui.views import PeerView, ReplyStats, Role


class Numbers:
    """Peers are numbered in the order they were met, and keep their number."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        """The number of a peer, by its key, or of a web server, by its name."""
        return self._known.setdefault(key, len(self._known) + 1)


@dataclass(frozen=True)
class _Mark:
    """Counters at one moment."""

    calls: int
    remote_calls: int
    hedges: int
    hedges_won: int
    failovers: int
    wait_s: float
    audits: int
    sent: int
    received: int

    @classmethod
    def now(cls, experts: RemoteExperts) -> _Mark:
        stats, (sent, received) = experts.stats, experts.transferred()
        return cls(
            stats.calls,
            stats.remote_calls,
            stats.hedges,
            stats.hedges_won,
            stats.failovers,
            stats.wait_s,
            experts.auditor.audits.drawn,
            sent,
            received,
        )


class Donors:
    """The donors of one open model."""

    def __init__(self, experts: RemoteExperts, numbers: Numbers) -> None:
        self.experts = experts
        self._numbers = numbers
        self._begun = _Mark.now(experts)
        self._failovers = 0
        self._convictions = 0
        self._rtt_ms: dict[PeerKey, float] = {}
        self._map_of: tuple[IndexSet, ...] = ()
        self._map: tuple[tuple[int, ...], ...] = ()

    @property
    def pool(self) -> Pool:
        """Who may be asked."""
        return self.experts.pool

    def begin(self) -> None:
        """A reply begins: its counters start at nothing."""
        self._begun = _Mark.now(self.experts)

    def counters(self, stats: ReplyStats) -> ReplyStats:
        """A reply's numbers, with what donors did for it."""
        now, begun = _Mark.now(self.experts), self._begun
        remote = now.remote_calls - begun.remote_calls
        return replace(
            stats,
            remote_calls=remote,
            local_calls=max(0, now.calls - begun.calls - remote),
            hedges=now.hedges - begun.hedges,
            hedges_won=now.hedges_won - begun.hedges_won,
            failovers=now.failovers - begun.failovers,
            audits=now.audits - begun.audits,
            bytes_up=now.sent - begun.sent,
            bytes_down=now.received - begun.received,
            waited_s=now.wait_s - begun.wait_s,
        )

    def news(self) -> list[Notice]:
        """What happened since the last time: failovers, and donors that were caught."""
        notices = []
        failovers = self.experts.stats.failovers
        if failovers > self._failovers:
            notices.append(Notice(NoticeKind.FAILOVER, self._failover()))
        self._failovers = failovers
        convictions = self.experts.auditor.audits.convictions
        for conviction in convictions[self._convictions :]:
            number = self._numbers.of(conviction.donor.key)
            text = f"Peer {number} is left out from now on: {conviction.reason}."
            notices.append(Notice(NoticeKind.BAN, text))
        self._convictions = len(convictions)
        return notices

    def _failover(self) -> str:
        failed = [
            remote for remote in list(self.pool.remotes.values()) if remote.failures or not remote.usable
        ]
        names = ", ".join(f"peer {self._numbers.of(remote.key)}" for remote in failed[:3])
        return f"{names.capitalize() or 'A donor'} failed; the reply goes on without."

    async def ping(self) -> None:
        """Measure the way to each donor; in the trio thread. A donor that does not answer is left to the pool."""
        import trio

        from swarm.errors import SwarmError

        for remote in list(self.pool.remotes.values()):
            peer = remote.peer
            if peer is None or not peer.is_open:
                continue
            began = trio.current_time()
            try:
                with trio.move_on_after(2.0) as scope:
                    await peer.ping()
            except SwarmError:
                continue
            if not scope.cancelled_caught:
                self._rtt_ms[remote.key] = 1000 * (trio.current_time() - began)

    def peers(self, serving: Sequence[tuple[PeerKey, PeerView]]) -> tuple[PeerView, ...]:
        """Donors, merged with the peers that serve bytes, by number."""
        by_number = {
            self._numbers.of(key): replace(view, number=self._numbers.of(key)) for key, view in serving
        }
        for remote in list(self.pool.remotes.values()):
            number = self._numbers.of(remote.key)
            by_number[number] = self._merged(number, remote, by_number.get(number))
        return tuple(by_number[number] for number in sorted(by_number))

    def _merged(self, number: int, remote: Remote, serving: PeerView | None) -> PeerView:
        sent, received = remote.transferred()
        total = self.pool.layout.total
        share = len(remote.ready) / total if total else 0.0
        experts = "all experts" if share == 1 else format_share(share)
        role = Role.COMPUTE
        if serving is not None:
            role = serving.role if remote.last_resort else Role.BOTH
        return PeerView(
            number,
            role,
            relayed=remote.relayed,
            rtt_ms=self._rtt_ms.get(remote.key),
            service_ms=1000 * remote.pace.expected_s(1) if remote.pace.measured else None,
            held=experts
            if serving is None or serving.held == "everything"
            else f"{serving.held} of bytes, {format_share(share)} of experts",
            calls=remote.tally.pairs,
            bytes_down=received + (serving.bytes_down if serving else 0),
            bytes_up=sent,
            state=_state(remote),
        )

    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """How many donors are ready for each expert: [layer][expert], layers without experts left out."""
        ready = tuple(remote.ready for remote in list(self.pool.remotes.values()) if not remote.banned)
        if ready != self._map_of or not self._map:
            self._map_of, self._map = ready, count_replicas(ready, self.pool.layout)
        return self._map

    def bans(self) -> list[tuple[int, str]]:
        """Donors that lied: number and reason."""
        remotes = list(self.pool.remotes.values())
        return [(self._numbers.of(remote.key), remote.banned) for remote in remotes if remote.banned]


def _state(remote: Remote) -> str:
    if remote.banned:
        return "banned"
    if remote.suspended:
        return "frozen"
    if not remote.ready:
        return "left"
    if not remote.usable:
        return "offline"
    return "slow" if remote.failures or remote.doubted else "ok"
