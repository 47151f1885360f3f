"""Connections to peers, each opened once and used by everybody, opened again after it was lost.

Whoever asks while a connection is being opened waits for that one. A peer that could not be reached is not
tried again for a while, so that a dead one costs its deadline once and not at every read.
"""

from dataclasses import dataclass

import trio

from swarm.errors import SwarmError, why
from swarm.pauses import pause_s
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair

CONNECT_S = 10.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 4.0
"""Shorter than a read's patience: whoever is the only one to have something is tried again within it."""


class NotTriedAgain(SwarmError):
    """{address} could not be reached a moment ago ({reason}); it is tried again in {pause_s} s."""


@dataclass
class _Link:
    opening: trio.Lock
    peer: rpc.Peer | None = None
    failures: int = 0
    retry_at: float = 0.0
    reason: str = ""


class Links:
    """The open connections of one identity, kept in a nursery of the caller's."""

    def __init__(self, nursery: trio.Nursery, keys: KeyPair, psk: bytes | None = None) -> None:
        self._nursery = nursery
        self._keys = keys
        self._psk = psk
        self._links: dict[tuple[Address, bytes | None], _Link] = {}

    async def peer(
        self,
        address: Address,
        expected_key: bytes | None = None,
        *,
        patient: bool = False,
        within_s: float = CONNECT_S,
    ) -> rpc.Peer:
        """The open connection to a peer; opens it when there is none.

        Args:
            address: Where it listens.
            expected_key: The identity it must prove; None takes whatever it has.
            patient: Try even when it could not be reached a moment ago.
            within_s: How long a try may take.

        Raises:
            NotTriedAgain: it failed lately and its pause is not over.
            SwarmError: it cannot be reached, or is not who it should be.
        """
        link = self._links.setdefault((address, expected_key), _Link(trio.Lock()))
        async with link.opening:
            if link.peer is not None and link.peer.is_open:
                return link.peer
            wait = link.retry_at - trio.current_time()
            if wait > 0 and not patient:
                raise NotTriedAgain(address=address, reason=link.reason, pause_s=f"{wait:.0f}")
            try:
                with trio.fail_after(within_s):
                    link.peer = await rpc.dial(
                        self._nursery, address, self._keys, psk=self._psk, expected_key=expected_key
                    )
            except trio.TooSlowError:
                error = rpc.Unreachable(address=address, reason=f"no answer within {within_s:g} s")
                self._failed(link, error)
                raise error from None
            except SwarmError as error:
                self._failed(link, error)
                raise
            link.failures = 0
            return link.peer

    def opened(self, address: Address, expected_key: bytes | None = None) -> rpc.Peer | None:
        """The connection to a peer if it is open now."""
        link = self._links.get((address, expected_key))
        return link.peer if link is not None and link.peer is not None and link.peer.is_open else None

    @staticmethod
    def _failed(link: _Link, error: SwarmError) -> None:
        link.retry_at = trio.current_time() + pause_s(FIRST_PAUSE_S, link.failures, LONGEST_PAUSE_S)
        link.failures += 1
        link.reason = why(error)
