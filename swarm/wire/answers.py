"""The answering half of a connection: runs the handler of each request, until it is taken back."""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from swarm.errors import SwarmError, clean_text
from swarm.wire.calls import Bulk, Busy, ConnectionLost, Handlers, InternalError, NotServed, Prompt, Shared
from swarm.wire.connection import Violation
from swarm.wire.frames import Buffer, Head, Kind
from swarm.wire.messages import U32, BadMessage, Failure, Message
from swarm.wire.outbox import Piece

if TYPE_CHECKING:
    from swarm.wire.peer import Peer

log = logging.getLogger(__name__)


class Answers:
    """See the module."""

    def __init__(self, peer: "Peer", handlers: Handlers, shared: Shared) -> None:
        self._peer = peer
        self._handlers = handlers
        self._shared = shared
        self._running: dict[int, trio.CancelScope] = {}
        self._last_id = 0

    def objection(self, head: Head) -> SwarmError | None:
        """Why a request or notice will not be handled, if so."""
        if isinstance(head.message, BadMessage):
            return head.message
        if type(head.message) not in self._handlers:
            return NotServed(message=head.message.kind)
        limits = self._shared.limits
        if len(self._running) >= limits.requests_per_connection or self._shared.answering >= limits.requests:
            return Busy(what="This peer", retry_after_s=1)
        return None

    def _at_once(self, head: Head, payload: Buffer) -> bool:
        """Answers a request if its handler can do so at once, and the answer can leave at once."""
        assert isinstance(head.message, Message)
        handler = self._handlers[type(head.message)]
        if not isinstance(handler, Prompt) or not self._peer.sends_at_once:
            return False
        try:
            result = handler.at_once(self._peer, head.message, payload)
        except SwarmError as error:
            result = failure_of(error), b""
        except Exception:
            log.exception("answering %s to %s failed inside", head.message.kind, self._peer.name)
            result = failure_of(InternalError(message=head.message.kind)), b""
        return result is not None and self._peer.send_at_once(Kind.REPLY, head.id, *result)

    def take_now(self, nursery: trio.Nursery, head: Head, payload: Buffer) -> bool:
        """Takes a request in without waiting, and answers it if it can be answered at once; False: `take` does."""
        if self.objection(head) is not None:
            return False
        self._number(head)
        if not self._at_once(head, payload):
            self._start(nursery, head, payload, None)
        return True

    async def take(self, nursery: trio.Nursery, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        """Begins to answer a request, or refuses it. Violation: its number was used before."""
        self._number(head)
        objection = self.objection(head)
        if objection is None:
            self._start(nursery, head, payload, bulk)
            return
        if bulk is not None:
            bulk.release()
        await self._peer.send(Kind.REPLY, head.id, failure_of(objection))

    def _number(self, head: Head) -> None:
        if head.id <= self._last_id:
            raise Violation(peer=self._peer.name, reason="its requests are out of order")
        self._last_id = head.id

    def _start(self, nursery: trio.Nursery, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        scope = trio.CancelScope()
        self._running[head.id] = scope
        self._shared.answering += 1
        nursery.start_soon(self._answer, scope, head, payload, bulk)

    def cancel(self, id: int) -> None:
        """Stops answering a request that was taken back."""
        if id in self._running:
            self._running[id].cancel()

    async def notice(self, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        """Handles a notice. What its handler raises is logged; there is nobody to tell."""
        assert isinstance(head.message, Message)
        try:
            data = payload if bulk is None else await bulk.open()
            await self._handlers[type(head.message)](self._peer, head.message, data)
        except SwarmError as error:
            log.info("a notice %s by %s failed: %s", head.message.kind, self._peer.name, error)
        except Exception:
            log.exception("a notice %s by %s failed inside", head.message.kind, self._peer.name)
        finally:
            if bulk is not None:
                bulk.release()

    async def _answer(self, scope: trio.CancelScope, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        assert isinstance(head.message, Message)
        reserve = _Reserve(self._shared, self._peer)
        try:
            with scope:
                piece = await self._reply(head, head.message, payload, bulk, reserve)
                del self._running[head.id]  # from here on, taking it back comes too late
                if piece is not None:
                    await piece.written.wait()
        finally:
            self._running.pop(head.id, None)
            self._shared.answering -= 1
            reserve.give_back()
            if bulk is not None:
                bulk.release()

    async def _reply(
        self, head: Head, message: Message, payload: Buffer, bulk: Bulk | None, reserve: "_Reserve"
    ) -> Piece | None:
        try:
            data = payload if bulk is None else await bulk.open()
            await reserve.take(type(message).reply_payload)
            result = await self._handlers[type(message)](self._peer, message, data)
            if result is None:
                raise TypeError(f"the handler of {message.kind} returned no reply")
            answer, reply = result
            if len(reply) > type(message).reply_payload:
                raise ValueError(f"{message.kind} declares a reply payload of {type(message).reply_payload}")
            reserve.keep(len(reply))
            return await self._peer.send(Kind.REPLY, head.id, answer, reply)
        except SwarmError as error:
            failure = failure_of(error)
        except Exception:
            log.exception("answering %s to %s failed inside", message.kind, self._peer.name)
            failure = failure_of(InternalError(message=message.kind))
        with suppress(ConnectionLost):  # then nobody is left to tell
            await self._peer.send(Kind.REPLY, head.id, failure)
        return None


class _Reserve:
    """Memory set aside for one reply."""

    def __init__(self, shared: Shared, peer: "Peer") -> None:
        self._budget = shared.outgoing(peer)
        self._peer = peer
        self._held = 0

    async def take(self, count: int) -> None:
        if count:
            await self._budget.take(count, self._peer)
            self._held = count

    def keep(self, count: int) -> None:
        """Gives back what is not needed."""
        if count < self._held:
            self._budget.give_back(self._held - count, self._peer)
            self._held = count

    def give_back(self) -> None:
        if self._held:
            self._budget.give_back(self._held, self._peer)
            self._held = 0


def failure_of(error: SwarmError) -> Failure:
    """The reply that tells an error to the other side."""
    hint = error.fields.get("retry_after_s")
    retry_after_ms = int(hint * 1000) if isinstance(hint, int | float) and 0 <= hint < U32 // 1000 else None
    return Failure(error.code[:80], clean_text(str(error), limit=1000), retry_after_ms)
