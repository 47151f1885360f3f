"""What a conversation is made of: replies, handlers, the errors of both, and what connections share."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import trio

from swarm.errors import SwarmError
from swarm.wire.aead import Tampered
from swarm.wire.connection import Sealed
from swarm.wire.frames import Buffer
from swarm.wire.limits import Budget, Limits
from swarm.wire.messages import Message

if TYPE_CHECKING:
    from swarm.wire.peer import Peer


class Reply(NamedTuple):
    """What comes back: a message and the raw bytes that followed it."""

    message: Message
    payload: Buffer = b""


PROVEN_BYTES = 1 << 20
"""Who has taken so many bytes on a connection is no newcomer there."""

Handler: TypeAlias = "Callable[[Peer, Any, Buffer], Awaitable[tuple[Message, Buffer] | None]]"
"""Answers a request. For a notice, what it returns is dropped."""
Handlers: TypeAlias = Mapping[type[Message], Handler]


@dataclass(frozen=True)
class Prompt:
    """A handler that can answer some requests without waiting for anything: `at_once` gives the answer, or None.

    It is called where requests are read, so it must be quick; None leaves the request to `handler`.
    """

    handler: Handler
    at_once: "Callable[[Peer, Any, Buffer], tuple[Message, Buffer] | None]"

    async def __call__(self, caller: "Peer", message: Any, payload: Buffer) -> tuple[Message, Buffer] | None:
        return await self.handler(caller, message, payload)


class RemoteError(SwarmError):
    """{peer} answered: {text} ({error_code})"""

    @property
    def remote_code(self) -> str:
        """The code of the other side's error, such as ``no-such-file``."""
        return str(self.fields["error_code"])

    @property
    def retry_after_s(self) -> float | None:
        """When the other side asks to be asked again, if it said so."""
        hint = self.fields.get("retry_after_s")
        return None if hint is None else float(str(hint))


class Busy(SwarmError):
    """{what} is busy; ask again in {retry_after_s} s.

    A handler raises it to turn work away with a hint; the asker sees a RemoteError with code ``busy``.
    """


class NotServed(SwarmError):
    """This peer does not answer “{message}”; it may have another part or version of the software."""


class InternalError(SwarmError):
    """This peer failed inside while it answered “{message}”; its log says more."""


class ConnectionLost(SwarmError):
    """The connection to {peer} ended: {reason}."""


class Owner(Protocol):
    """The connection that memory is taken for."""

    name: str
    source: str
    """The machine or network that it comes from."""

    @property
    def sent_bytes(self) -> int:
        """How much it has taken from this side."""

    def drop(self, reason: str) -> None:
        """Ends it at once."""

    def receiving_stalled_s(self, now: float) -> float:
        """For how long a frame has been received in part, without progress."""

    def sending_stalled_s(self, now: float) -> float:
        """For how long bytes have waited to leave, without progress."""


@dataclass
class Shared:
    """What all connections of a server, or all outgoing ones of a process, have in common."""

    limits: Limits
    incoming: Budget[Owner] = field(init=False)
    proven: Budget[Owner] = field(init=False)
    """For replies to connections that took what they were sent before."""
    newcomers: Budget[Owner] = field(init=False)
    """For replies to all others, so that any number of them who stall keep nothing from who does not."""
    crypto: trio.CapacityLimiter = field(init=False)
    """Threads that encipher and decipher."""
    answering: int = 0
    """Requests that are being answered."""

    def __post_init__(self) -> None:
        limit = self.limits.bytes_in_flight
        self.incoming = Budget(limit, lambda owner, now: owner.receiving_stalled_s(now))
        share = limit // 4
        self.newcomers = Budget(share, lambda owner, now: owner.sending_stalled_s(now))
        self.proven = Budget(limit - share, lambda owner, now: owner.sending_stalled_s(now))
        self.crypto = trio.CapacityLimiter(4)

    def outgoing(self, owner: Owner) -> Budget[Owner]:
        """Where memory for a reply is taken from."""
        return self.proven if owner.sent_bytes >= PROVEN_BYTES else self.newcomers


class Bulk:
    """The memory set aside for a long payload of a connection, and the payload once it is there, enciphered."""

    def __init__(self, size: int, shared: Shared, owner: Owner) -> None:
        """Takes over ``size`` bytes that were taken from the incoming budget for the owner."""
        self._held = size
        self._sealed: Sealed | None = None
        self._shared = shared
        self._owner = owner

    def fill(self, sealed: Sealed) -> None:
        """Says what the payload is."""
        self._sealed = sealed

    async def open(self) -> memoryview:
        """Deciphers it in a worker thread. Raises ConnectionLost, after ending it, when it was changed."""
        assert self._sealed is not None
        try:
            return await trio.to_thread.run_sync(self._sealed.open, limiter=self._shared.crypto)
        except Tampered as error:
            self._owner.drop(str(error))
            raise ConnectionLost(peer=self._owner.name, reason=str(error)) from None

    def release(self) -> None:
        """Gives its memory back to the others; more than once does no harm."""
        if self._held:
            self._shared.incoming.give_back(self._held, self._owner)
            self._held, self._sealed = 0, None
