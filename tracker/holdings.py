"""Who holds what of one kind, chunks or the experts of a profile. Pure.

`served` is what peers say they serve; `told` adds what donors were told to hold and do not yet, so donors that come
together are not all given the same.
"""

from dataclasses import dataclass, field

from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from tracker.index import HoldingIndex, memory_of

PROMISE_S = 600.0


@dataclass
class Holdings:
    """Who serves indices of one kind (chunks, or experts of a profile), and who was told to."""

    total: int
    network: str | None = None
    """Of who was first to serve it; None: not bounded."""
    served: HoldingIndex[PeerKey] = field(init=False)
    told: HoldingIndex[PeerKey] = field(init=False)
    resident: dict[PeerKey, bytes] = field(default_factory=dict)
    """Of the experts a peer serves, those in its RAM, encoded."""
    last_resort: set[PeerKey] = field(default_factory=set)
    donors: set[PeerKey] = field(default_factory=set)
    """Those that hold what they were told."""
    promised_s: dict[PeerKey, float] = field(default_factory=dict)
    """When a donor that does not serve all of it yet was told, or last served more."""

    def __post_init__(self) -> None:
        self.served = HoldingIndex(self.total)
        self.told = HoldingIndex(self.total)

    def serve(self, peer: PeerKey, held: IndexSet, now_s: float) -> None:
        """Replaces what a peer serves. ValueError for an index beyond the last."""
        more = not held <= self.served.held(peer)
        self.served.set(peer, held)
        self.told.set(peer, self._told_with(peer, held))
        if peer in self.promised_s and self.told.held(peer) == held:
            del self.promised_s[peer]
        elif peer in self.promised_s and more:
            self.promised_s[peer] = now_s

    def tell(self, peer: PeerKey, assigned: IndexSet, now_s: float) -> None:
        """Replaces what a peer was told to hold."""
        self.donors.add(peer)
        self.told.set(peer, assigned)
        if assigned <= self.served.held(peer):
            self.promised_s.pop(peer, None)
        else:
            self.promised_s[peer] = now_s

    def _told_with(self, peer: PeerKey, held: IndexSet) -> IndexSet:
        """What a peer counts as told to hold when it serves something."""
        return held | self.told.held(peer) if peer in self.donors else held

    def memory_when_serving(self, peer: PeerKey, held: IndexSet, resident: bytes = b"") -> int:
        """The bytes that a peer takes here when it serves something."""
        sets = (held, self._told_with(peer, held))
        return len(resident) + sum(memory_of(one, self.total) for one in sets)

    def memory_when_told(self, peer: PeerKey, assigned: IndexSet) -> int:
        """The bytes that a peer takes here when it is told to hold something."""
        sets = (self.served.held(peer), assigned)
        return len(self.resident.get(peer, b"")) + sum(memory_of(one, self.total) for one in sets)

    def release(self, now_s: float) -> None:
        """Counts no more on donors that were told to hold something and do not come nearer to it."""
        for peer in [peer for peer, then_s in self.promised_s.items() if then_s + PROMISE_S <= now_s]:
            del self.promised_s[peer]
            self.told.set(peer, self.served.held(peer))

    @property
    def is_served(self) -> bool:
        """Whether anybody serves anything of it."""
        return bool(len(self.served))

    def forget(self, peer: PeerKey) -> None:
        """Forgets a peer."""
        self.served.remove(peer)
        self.told.remove(peer)
        self.resident.pop(peer, None)
        self.last_resort.discard(peer)
        self.donors.discard(peer)
        self.promised_s.pop(peer, None)
