"""Ways to a peer: directly where that works, else through the tracker's relay.

That the tracker reaches a peer at an address does not say that others do: it may be in the same network. So an
address is tried for a short time only where there is the relay as well. What is relayed stays so until the
direct way works, which is tried beside it now and then (`Links` says when). Expert calls have connections of
their own, so that bulk bytes do not hold them up.
"""

from contextlib import suppress

import trio

from swarm.errors import SwarmError
from swarm.peers.links import Links
from swarm.peers.tracking import TrackerClient
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages.tracker import Contact
from tracker.relayed import RelayEnd, dial_relayed

RELAY_S = 10.0
DIRECT_S = 2.0
"""How long the direct way is tried where there is another."""
ONLY_WAY_S = 4.0
LINGER_S = 30.0
"""How long a relayed connection stays for what still uses it, once there is a direct one."""


class NoWay(SwarmError):
    """Peer {peer} has no address, and the tracker does not relay to it."""


class RelayTooSlow(SwarmError):
    """Peer {peer} did not answer through the tracker's relay within {seconds} s."""


class Doors:
    """Opens connections for one identity, kept in a nursery of the caller's."""

    def __init__(
        self,
        nursery: trio.Nursery,
        keys: KeyPair,
        tracker: TrackerClient,
        psk: bytes | None = None,
        links: Links | None = None,
    ) -> None:
        """`links` keep the direct connections; None: links of their own."""
        self.links = links or Links(nursery, keys, psk)
        self._nursery = nursery
        self._keys = keys
        self._psk = psk
        self._tracker = tracker
        self._relay: RelayEnd | None = None
        self._opening = trio.Lock()
        self._relayed: dict[PeerKey, rpc.Peer] = {}
        self._one_at_a_time: dict[PeerKey, trio.Lock] = {}
        self._trying: set[PeerKey] = set()

    async def open(self, contact: Contact) -> tuple[rpc.Peer, bool]:
        """A connection to a peer, and whether it is relayed. Raises SwarmError when there is no way."""
        async with self._one_at_a_time.setdefault(contact.key, trio.Lock()):
            if not contact.relay:
                return await self._directly(contact, ONLY_WAY_S), False
            relayed = self._relayed.get(contact.key)
            if relayed is None or not relayed.is_open:
                with suppress(SwarmError):  # `links` remember what was in the way
                    return await self._directly(contact, DIRECT_S), False
                return await self._through_relay(contact.key), True
            direct = self.direct(contact)
            if direct is None:
                return relayed, True
            del self._relayed[contact.key]
            self._nursery.start_soon(_linger, relayed)
            return direct, False

    def direct(self, contact: Contact) -> rpc.Peer | None:
        """The direct connection to a peer that was relayed so far; None, and it is tried, where there is none."""
        address = self._tracker.address_of(contact)
        if address is None:
            return None
        peer = self.links.opened(address, contact.key)
        if peer is None and contact.key not in self._trying:
            self._trying.add(contact.key)
            self._nursery.start_soon(self._try_directly, contact)
        return peer

    async def _directly(self, contact: Contact, within_s: float) -> rpc.Peer:
        address = self._tracker.address_of(contact)
        if address is None:
            raise NoWay(peer=contact.key)
        return await self.links.peer(address, contact.key, within_s=within_s)

    async def _try_directly(self, contact: Contact) -> None:
        try:
            with suppress(SwarmError):  # it goes on through the relay
                await self._directly(contact, DIRECT_S)
        finally:
            self._trying.discard(contact.key)

    async def _through_relay(self, key: PeerKey) -> rpc.Peer:
        with trio.move_on_after(RELAY_S):
            end = await self.relay()
            peer = await dial_relayed(self._nursery, end, key, self._keys, psk=self._psk)
            self._relayed[key] = peer
            return peer
        raise RelayTooSlow(peer=key, seconds=f"{RELAY_S:.0f}")

    async def relay(self) -> RelayEnd:
        """Our end of the tracker's relay, over a connection of its own. Raises SwarmError."""
        async with self._opening:
            if self._relay is None or not self._relay.peer.is_open:
                end = RelayEnd()
                peer = await rpc.dial(
                    self._nursery,
                    self._tracker.address,
                    self._keys,
                    psk=self._psk,
                    expected_key=self._tracker.key,
                    handlers=end.handlers(),
                )
                end.attach(peer)
                self._nursery.start_soon(end.run)
                self._relay = end
            return self._relay


async def _linger(peer: rpc.Peer) -> None:
    await trio.sleep(LINGER_S)
    await peer.aclose("the direct way works")


class Through:
    """The ways to one peer, in place of `Links`."""

    def __init__(self, doors: Doors, contact: Contact) -> None:
        self._doors = doors
        self._contact = contact

    async def peer(self, address: Address, expected_key: bytes | None = None) -> rpc.Peer:
        """The open connection; opens it when there is none. Raises SwarmError."""
        return (await self._doors.open(self._contact))[0]
