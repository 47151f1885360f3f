"""The asking half of a connection: requests that wait for their replies, and what becomes of late ones."""

from collections.abc import Callable

import trio

from swarm.wire.calls import Bulk, ConnectionLost, RemoteError, Reply
from swarm.wire.connection import Violation
from swarm.wire.frames import Buffer, Head
from swarm.wire.messages import BadMessage, Failure, Message


class Question:
    """A request that waits for its reply; `told` is called when it came, or will never come."""

    __slots__ = ("answer", "bulk", "id", "limit", "told")

    def __init__(self, id: int, limit: int, told: Callable[[], None]) -> None:
        self.id = id
        self.limit = limit
        self.told = told
        self.answer: tuple[Message | BadMessage, Buffer] | None = None
        self.bulk: Bulk | None = None

    def settle(self, message: Message | BadMessage, payload: Buffer = b"", bulk: Bulk | None = None) -> None:
        """Says what the answer is."""
        self.answer, self.bulk = (message, payload), bulk
        self.told()


class Questions:
    """See the module. ``peer`` is the name that errors give to the other side."""

    def __init__(self, limit: int) -> None:
        self.peer = "The peer"
        self._limit = limit
        self._open: dict[int, Question] = {}
        self._freed = trio.lowlevel.ParkingLot()
        self._last_id = 0
        self._ended: ConnectionLost | None = None

    @property
    def is_free(self) -> bool:
        """Whether one more may be asked."""
        return len(self._open) < self._limit

    async def wait_free(self) -> None:
        """Waits until one more may be asked; returns at once, without a checkpoint, if so."""
        while not self.is_free:
            await self._freed.park()

    def next_id(self) -> int:
        """A number that was not used before on this connection."""
        self._last_id += 1
        return self._last_id

    def ask(self, message: Message, told: Callable[[], None]) -> Question:
        """Notes a question that is about to be sent."""
        question = Question(self.next_id(), type(message).reply_payload, told)
        self._open[question.id] = question
        return question

    def forget(self, question: Question) -> None:
        """The asker has its answer, or wants none any more; more than once does no harm."""
        if self._open.pop(question.id, None) is None:
            return
        self._freed.unpark(count=max(self._limit - len(self._open), 1))
        if question.bulk is not None:
            question.bulk.release()

    def wants(self, head: Head) -> bool:
        """Whether somebody waits for this reply, and for a payload of that length."""
        question = self._open.get(head.id)
        return question is not None and question.answer is None and head.payload_bytes <= question.limit

    def take(self, head: Head, payload: Buffer, bulk: Bulk | None) -> None:
        """Gives a reply to who asked. Raises Violation when nobody ever did."""
        if head.id > self._last_id:
            raise Violation(peer=self.peer, reason="it answers what was never asked")
        question = self._open.get(head.id)
        if question is None or question.answer is not None:  # it was taken back meanwhile
            if bulk is not None:
                bulk.release()
        elif head.payload_bytes > question.limit and isinstance(head.message, Message):
            reason = f"it brings {head.payload_bytes} bytes where its request declares {question.limit}"
            question.settle(BadMessage(message=head.message.kind, reason=reason))
        else:
            question.settle(head.message, payload, bulk)

    def end(self, error: ConnectionLost) -> None:
        """The connection ended: whoever still waits gets no answer, but this error."""
        self._ended = error
        for question in list(self._open.values()):
            question.told()

    async def unpack(self, question: Question) -> Reply:
        """What a question's answer brings to whoever asked."""
        reply = self.unpack_short(question)
        return Reply(reply.message, reply.payload if question.bulk is None else await question.bulk.open())

    def unpack_short(self, question: Question) -> Reply:
        """The same without a long payload, which is left closed."""
        if question.answer is None:
            ended = self._ended or ConnectionLost(peer=self.peer, reason="it ended")
            raise ConnectionLost(**ended.fields)
        message, payload = question.answer
        if isinstance(message, BadMessage):
            raise BadMessage(**message.fields)
        if isinstance(message, Failure):
            hint = None if message.retry_after_ms is None else message.retry_after_ms / 1000
            raise RemoteError(peer=self.peer, text=message.text, error_code=message.code, retry_after_s=hint)
        return Reply(message, payload)
