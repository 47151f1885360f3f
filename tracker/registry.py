"""The peers a tracker knows: who they are, where they are, and for how long that holds. Pure: the clock
comes in.

A peer is its key. A registration replaces the one before it, so a restart leaves no ghost; messages that
still carry the old generation are refused. A registration lives as long as heartbeats prolong it: their
sequence numbers must grow, and a deadline never moves back. Networks (a /24 of IPv4, a /56 of IPv6) have a
quota.

A loopback address is told to those on the loopback interface only. Others learn that the peer is beside the
tracker, at the tracker's own host, or reach it through the relay.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarm.errors import SwarmError
from swarm.wire.address import Address
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import Contact

DUE_AFTER_HEARTBEATS = 1.25
"""After so many intervals without a heartbeat a peer is doubted."""


class NotRegistered(SwarmError):
    """The tracker does not know this registration of peer {peer}; register again."""


class OutOfOrder(SwarmError):
    """Peer {peer} sent heartbeat {sequence} after {latest}; it was ignored. Is its key used twice?"""


class TooManyPeers(SwarmError):
    """The tracker has no room for another peer from {network}; ask its operator to raise the limit of
    {limit}."""


class TooManyHoldings(SwarmError):
    """What peer {peer} holds was not noted: {what} is all that this tracker keeps. Serve fewer models, or longer
    ranges of them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many peers a tracker keeps, for how long without a heartbeat, and how much of what they hold."""

    peers: int = 20_000
    peers_per_network: int = 256
    set_bytes: int = 2 << 30
    """Memory for sets of chunks and experts. A peer with odd parts of a model of 300 GB takes 0.2 MB, one with a
    range of it, or all of it, a few kB."""
    set_bytes_per_network: int = 64 << 20
    set_bytes_per_peer: int = 4 << 20
    lifetime_s: float = 75.0
    heartbeat_s: float = 20.0


@dataclass(slots=True)
class Entry:
    """A registered peer. `address` was dialled back and answered with the peer's key; None: relay only."""

    key: PeerKey
    generation: int
    network: str
    address: Address | None
    loopback: bool
    """Whether that address is on the loopback interface."""
    local: bool
    """Whether the peer listens there only."""
    agent: str
    deadline_s: float
    sequence: int = -1
    revision: int = 0
    service_us: int = 0
    queue: int = 0
    set_bytes: dict[bytes, int] = field(default_factory=dict)
    """The memory of the sets that it announced or was told to hold, by what they are about."""
    due_s: float = 0.0
    """When the next heartbeat should have come."""
    lost: bool = False
    """Whether the connection it registered or was last heard on has ended since."""

    def is_doubtful(self, now_s: float) -> bool:
        """Whether the peer may be gone: others are named first."""
        return self.lost or now_s > self.due_s


class Registry:
    """All registered peers. `first_generation` should be random, so that no generation outlives a restart."""

    def __init__(self, limits: Limits, first_generation: int) -> None:
        self.limits = limits
        self.departures = 0
        """How many peers have left or fallen silent."""
        self._due_after_s = min(DUE_AFTER_HEARTBEATS * limits.heartbeat_s, limits.lifetime_s)
        self._generation = first_generation
        self._entries: OrderedDict[PeerKey, Entry] = OrderedDict()
        self._networks: Counter[str] = Counter()
        self._set_bytes: Counter[str] = Counter()
        """Of each network's peers."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: PeerKey) -> bool:
        return key in self._entries

    def get(self, key: PeerKey) -> Entry | None:
        """The registration of a peer, if it has one."""
        return self._entries.get(key)

    def check_room(self, key: PeerKey, origin: Address) -> None:
        """TooManyPeers when a registration from there would be refused."""
        network = network_of(origin)
        known = self._entries.get(key)
        if known is None and len(self._entries) >= self.limits.peers:
            raise TooManyPeers(network="anywhere", limit=self.limits.peers)
        others = self._networks[network] - (known is not None and known.network == network)
        if network != LOOPBACK and others >= self.limits.peers_per_network:
            raise TooManyPeers(network=network, limit=self.limits.peers_per_network)

    def register(
        self, key: PeerKey, origin: Address, address: Address | None, local: bool, agent: str, now_s: float
    ) -> Entry:
        """Makes a peer known. `origin` is where it calls from, `address` where it was found to be reachable.

        TooManyPeers beyond a quota. What was known of the key before is replaced.
        """
        self.check_room(key, origin)
        self._forget(key)
        self._generation += 1
        network = network_of(origin)
        entry = Entry(
            key=key,
            generation=self._generation,
            network=network,
            address=address,
            loopback=address is not None and address.is_loopback,
            local=local,
            agent=agent,
            deadline_s=now_s + self.limits.lifetime_s,
            due_s=now_s + self._due_after_s,
        )
        self._entries[key] = entry
        self._networks[network] += 1
        return entry

    def move(self, entry: Entry, address: Address | None) -> None:
        """Notes where a peer is reachable now."""
        entry.address, entry.loopback = address, address is not None and address.is_loopback

    def entry(self, key: PeerKey, generation: int) -> Entry:
        """The registration of a peer. NotRegistered when it is gone or another has replaced it."""
        entry = self._entries.get(key)
        if entry is None or entry.generation != generation:
            raise NotRegistered(peer=key)
        return entry

    def renew(self, key: PeerKey, generation: int, sequence: int, now_s: float) -> Entry:
        """Prolongs a registration. NotRegistered, or OutOfOrder for a heartbeat that came before."""
        entry = self.entry(key, generation)
        if sequence <= entry.sequence:
            raise OutOfOrder(peer=key, sequence=sequence, latest=entry.sequence)
        entry.sequence = sequence
        entry.deadline_s = max(entry.deadline_s, now_s + self.limits.lifetime_s)
        entry.due_s = max(entry.due_s, now_s + self._due_after_s)
        entry.lost = False
        self._entries.move_to_end(key)
        return entry

    def account(self, entry: Entry, subject: bytes, size: int) -> None:
        """Notes the memory of a registered peer's sets about something, in the place of what they took before.

        TooManyHoldings when they grow beyond what is kept of a peer, of a network, or in all.
        """
        more = size - entry.set_bytes.get(subject, 0)
        if more > 0:
            self._check_sets(entry, more)
        entry.set_bytes[subject] = size
        self._set_bytes[entry.network] += more

    def _check_sets(self, entry: Entry, more: int) -> None:
        network, limits = entry.network, self.limits
        own, shared = sum(entry.set_bytes.values()), self._set_bytes[network]
        bounds = (
            (own, limits.set_bytes_per_peer, "one peer"),
            (shared if network != LOOPBACK else 0, limits.set_bytes_per_network, f"all peers from {network}"),
            (self._set_bytes.total(), limits.set_bytes, "all peers"),
        )
        for used, limit, whose in bounds:
            if used + more > limit:
                raise TooManyHoldings(peer=entry.key, what=f"{limit:,} bytes of {whose}")

    def discount(self, entry: Entry, subjects: Iterable[bytes]) -> None:
        """Takes back what was noted about something, if it was."""
        for subject in subjects:
            self._set_bytes[entry.network] -= entry.set_bytes.pop(subject, 0)

    def leave(self, key: PeerKey, generation: int) -> None:
        """Forgets a peer. NotRegistered when that registration is gone already."""
        self.entry(key, generation)
        self.remove(key)

    def remove(self, key: PeerKey) -> bool:
        """Forgets a peer whatever its generation. False when it was not known."""
        known = self._forget(key)
        self.departures += known
        return known

    def expire(self, now_s: float) -> list[PeerKey]:
        """Forgets the peers that fell silent, and names them."""
        silent: list[PeerKey] = []
        # Each renewal moves a peer to the end with a later deadline, so the earliest deadlines stand first.
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.deadline_s > now_s:
                break
            self.remove(key)
            silent.append(key)
        return silent

    def contact(self, key: PeerKey, near: bool, relay: bool) -> Contact | None:
        """How somebody may reach a peer; None when there is no way.

        `near`: whoever asks is on the tracker's loopback interface; `relay`: the relay reaches the peer.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        address = entry.address
        if address is not None and entry.loopback and not near:
            address = None if entry.local else Address("", address.port)
        if address is None:
            return Contact(key, "", 0, relay=True) if relay else None
        return Contact(key, address.host, address.port, relay)

    def _forget(self, key: PeerKey) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.discount(entry, list(entry.set_bytes))
        self._networks[entry.network] -= 1
        if not self._networks[entry.network]:
            del self._networks[entry.network]
            del self._set_bytes[entry.network]
        return True


LOOPBACK = "loopback"


def bounded_network(address: Address | None) -> str | None:
    """The network that a caller's quotas count for; None on this machine, and where the address is not known."""
    return None if address is None or address.is_loopback else network_of(address)


def network_of(address: Address) -> str:
    """The network that shares a quota: loopback, a /24 of IPv4 (mapped ones too), a /56 of IPv6."""
    if address.is_loopback:
        return LOOPBACK
    ip = address.ip
    if ip is None:
        return address.host
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    prefix = 24 if ip.version == 4 else 56
    plain = str(ip).partition("%")[0]
    return str(ipaddress.ip_network(f"{plain}/{prefix}", strict=False))
