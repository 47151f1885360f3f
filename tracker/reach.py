"""Whether others can reach a peer: which of the addresses it names are worth a try, and the try itself.

The tracker dials back and the peer must prove its key there, so nobody publishes somebody else's address. It
dials only what a peer may speak for: the address it calls from, and advertised ones that are no loopback,
link-local, multicast or unspecified address; private ones only for peers that call from private addresses.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import trio

from swarm.errors import SwarmError
from swarm.wire import rpc
from swarm.wire.address import Address, BadAddress, parse_address
from swarm.wire.keys import KeyPair, PeerKey

DialBack: TypeAlias = Callable[[Address, PeerKey], Awaitable[None]]
"""Connects and checks the key that is proven there; raises SwarmError or OSError."""
DIAL_BACK_S = 4.0
MOST_CANDIDATES = 5
_IP: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


@dataclass(frozen=True, slots=True)
class Reach:
    """The address at which a peer was reached, or None and what was in the way."""

    address: Address | None
    obstacle: str


def plain(address: Address) -> Address:
    """An IPv4 address in the form of IPv6 as plain IPv4, others as they are."""
    mapped = getattr(address.ip, "ipv4_mapped", None)
    return address if mapped is None else Address(str(mapped), address.port)


def candidates(origin: Address, advertised: tuple[str, ...], port: int) -> tuple[list[Address], list[str]]:
    """The addresses worth a try, advertised ones first, and why others are not."""
    found: list[Address] = []
    refused: list[str] = []
    for text in advertised:
        try:
            address = plain(parse_address(text, port or 1))
        except BadAddress as error:
            refused.append(str(error))
            continue
        reason = None if address.ip is None else forbidden(address.ip, origin)
        if address.is_loopback and not origin.is_loopback:
            reason = "it is a loopback address"
        if address.port == 0:
            reason = "it has no port"
        if reason:
            refused.append(f"{address} was not tried: {reason}.")
        elif address not in found:
            found.append(address)
    if port:
        own = Address(origin.host, port)
        if own not in found:
            found.append(own)
    return found[:MOST_CANDIDATES], refused


def forbidden(ip: _IP, origin: Address) -> str | None:
    """Why a peer that calls from `origin` may not send the tracker to an address; None when it may."""
    if origin.is_loopback:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local:
        return "no peer can be reached there"
    if ip.is_private and not (origin.ip is not None and origin.ip.is_private):
        return "it is private and the peer is not in that network"
    return None


async def find_reach(
    key: PeerKey, origin: Address, advertised: tuple[str, ...], port: int, dial_back: DialBack
) -> Reach:
    """Dials back to the candidates at once; the first of them, in order, at which the peer answered."""
    tried, refused = candidates(origin, advertised, port)
    reached: set[Address] = set()
    obstacles: dict[Address, str] = {}

    async def attempt(address: Address) -> None:
        try:
            for place in await _places(address, origin):
                await dial_back(place, key)
            reached.add(address)
        except (SwarmError, OSError) as error:
            obstacles[address] = str(error)

    with trio.move_on_after(DIAL_BACK_S):
        async with trio.open_nursery() as nursery:
            for address in tried:
                nursery.start_soon(attempt, address)
    for address in tried:
        if address in reached:
            return Reach(address, "")
    said = [
        obstacles.get(address, f"{address} did not answer within {DIAL_BACK_S:g} s.") for address in tried
    ]
    if not tried:
        refused.append("The peer listens nowhere.")
    return Reach(None, " ".join([*said, *refused]))


async def _places(address: Address, origin: Address) -> list[Address]:
    """Where to dial for an address: itself, or what its name stands for now. OSError, BadAddress."""
    if address.ip is not None or (address.is_loopback and origin.is_loopback):
        return [address]
    found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    places = [Address(str(entry[4][0]), address.port) for entry in found[:1]]
    for place in places:
        reason = "it is no address" if place.ip is None else forbidden(place.ip, origin)
        if reason:
            raise BadAddress(text=str(address), reason=f"its name stands for {place.host}: {reason}")
    return places


def dial_back_with(keys: KeyPair, psk: bytes | None) -> DialBack:
    """Dials as a peer of the swarm, with the tracker's own identity."""

    async def dial_back(address: Address, key: PeerKey) -> None:
        async with rpc.connect(address, keys, psk=psk, expected_key=key):
            return

    return dial_back
