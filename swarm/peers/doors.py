"""Ways to a peer: directly where that works, else through the tracker's relay. Expert calls have connections
of their own, so that bulk bytes do not hold them up."""

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


class NoWay(SwarmError):
    """Peer {peer} has no address, and the tracker does not relay to it."""


class RelayTooSlow(SwarmError):
    """Peer {peer} did not answer through the tracker's relay within {seconds} s."""


class Doors:
    """Opens connections for one identity, kept in a nursery of the caller's."""

    def __init__(
        self, nursery: trio.Nursery, keys: KeyPair, tracker: TrackerClient, psk: bytes | None = None
    ) -> None:
        self._nursery = nursery
        self._keys = keys
        self._psk = psk
        self._tracker = tracker
        self._links = Links(nursery, keys, psk)
        self._relay: RelayEnd | None = None
        self._opening = trio.Lock()
        self._relayed: dict[PeerKey, rpc.Peer] = {}

    async def open(self, contact: Contact) -> tuple[rpc.Peer, bool]:
        """A connection to a peer, and whether it is relayed. Raises SwarmError when there is no way."""
        address = self._tracker.address_of(contact)
        if address is not None:
            try:
                return await self._links.peer(address, contact.key), False
            except SwarmError:
                if not contact.relay:
                    raise
        if not contact.relay:
            raise NoWay(peer=contact.key)
        known = self._relayed.get(contact.key)
        if known is not None and known.is_open:
            return known, True
        with trio.move_on_after(RELAY_S):
            end = await self.relay()
            peer = await dial_relayed(self._nursery, end, contact.key, self._keys, psk=self._psk)
            self._relayed[contact.key] = peer
            return peer, True
        raise RelayTooSlow(peer=contact.key, seconds=f"{RELAY_S:.0f}")

    async def direct(self, contact: Contact) -> rpc.Peer | None:
        """A direct connection to a peer that was relayed so far; None when there is still none."""
        address = self._tracker.address_of(contact)
        if address is None:
            return None
        try:
            return await self._links.peer(address, contact.key)
        except SwarmError:
            return None

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


class Through:
    """The way to one relayed peer, in place of `Links`."""

    def __init__(self, doors: Doors, contact: Contact) -> None:
        self._doors = doors
        self._contact = contact

    async def peer(self, address: Address, expected_key: bytes | None = None) -> rpc.Peer:
        """The open connection; opens it when there is none. Raises SwarmError."""
        return (await self._doors.open(self._contact))[0]
