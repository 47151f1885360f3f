"""Frames: a bounded CBOR head and a raw payload, laid into Noise records.

    record:    length (2 bytes, big endian), Noise message of that length
    plain:     head length (2 bytes, big endian), head, and the payload if all of it fits one record
    else:      the payload follows in records of its own, each as full as it can be
    head:      [kind, id, message name, fields, payload bytes]

So a short frame is one record, and the records of a long payload have sizes known from its head: they can
be received into one buffer and deciphered in one go, beside the thread that receives.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

from swarm.errors import SwarmError
from swarm.wire import aead, cbor
from swarm.wire.messages import U64, BadMessage, Message, decode_fields, encode_fields

MAX_HEAD = 48 << 10
MAX_PAYLOAD = 80 << 20
_LENGTH_BYTES = 2
_LIST_OF_FIVE = b"\x85"
_SHORT = 64
"""Bytes of a head that may be one of few."""
_NAME_CHARS = 80
Buffer: TypeAlias = "bytes | bytearray | memoryview"


class BadFrame(SwarmError):
    """A frame that breaks the rules was refused: {reason}."""


class Kind(IntEnum):
    """What a frame is in a conversation."""

    REQUEST = 0
    REPLY = 1
    NOTICE = 2


@dataclass(frozen=True, slots=True)
class Head:
    """A frame without its payload. ``message`` is the error instead when only the message was bad."""

    kind: Kind
    id: int
    message: Message | BadMessage
    payload_bytes: int


def encode_head(kind: Kind, id: int, message: Message, payload_bytes: int) -> bytes:
    """The head's bytes. Raises BadMessage when message or payload break the message's own rules."""
    cls = type(message)
    if payload_bytes > cls.payload_limit:
        raise BadMessage(message=cls.kind, reason=f"a payload of {payload_bytes} bytes is too long")
    fields = _said_before(message) if cls.reply_payload else _said(message)
    head = b"".join(
        (_LIST_OF_FIVE, cbor.encode(int(kind)), cbor.encode(id), fields, cbor.encode(payload_bytes))
    )
    if len(head) > MAX_HEAD:
        raise BadMessage(message=cls.kind, reason=f"its fields take {len(head)} bytes")
    return head


def _said(message: Message) -> bytes:
    """A message's name and fields, as they stand in a head."""
    return cbor.encode(type(message).kind) + cbor.encode(encode_fields(message))


_said_before = lru_cache(maxsize=512)(_said)
"""Requests for experts differ from one to the next in their payload alone."""


def fits_one_record(head_bytes: int, payload_bytes: int) -> bool:
    """Whether a payload travels in the record of its head."""
    return _LENGTH_BYTES + head_bytes + payload_bytes <= aead.MAX_PLAIN


def join_head(head: bytes, inline: Buffer = b"") -> Sequence[Buffer]:
    """The parts of the plain text of a head's record."""
    return len(head).to_bytes(_LENGTH_BYTES, "big"), head, inline


def split_head(plain: bytes) -> tuple[Head, memoryview | None]:
    """The head in a record, and its payload unless that follows in records of its own.

    Raises BadFrame, BadEncoding when the frame itself is wrong: after that nothing on the connection can be
    believed. A message that is unknown or out of its bounds comes back as its BadMessage, and one whose
    payload is longer than its class allows, too: then the conversation can go on.
    """
    length = int.from_bytes(plain[:_LENGTH_BYTES], "big")
    start = _LENGTH_BYTES + length
    if not 0 < length <= MAX_HEAD or start > len(plain):
        raise BadFrame(reason="its head is empty, too long or cut off")
    head = decode_head(plain[_LENGTH_BYTES:start])
    if not fits_one_record(length, head.payload_bytes):
        if start != len(plain):
            raise BadFrame(reason="bytes follow a head whose payload comes separately")
        return head, None
    if len(plain) - start != head.payload_bytes:
        raise BadFrame(reason="its payload is not as long as its head says")
    return head, memoryview(plain)[start:]


def decode_head(data: bytes) -> Head:
    """Reads a head. Raises BadFrame, BadEncoding; see `split_head` for bad messages."""
    if 2 < len(data) <= _SHORT and data[:1] == _LIST_OF_FIVE and data[1] < len(Kind):
        with suppress(SwarmError):  # what is wrong is told below
            id, end = cbor.decode_count(data, 2)
            message, payload_bytes = _heard_before(data[end:])
            return Head(Kind(data[1]), id, message, payload_bytes)
    return _decode_head(data)


@lru_cache(maxsize=512)
def _heard_before(end: bytes) -> tuple[Message, int]:
    """What the end of a head says, from the message's name on. Raises as `decode_head`, and BadMessage."""
    head = _decode_head(_LIST_OF_FIVE + b"\0\0" + end)
    if isinstance(head.message, BadMessage):
        raise head.message
    return head.message, head.payload_bytes


def _decode_head(data: bytes) -> Head:
    value = cbor.decode(data)
    if not isinstance(value, list) or len(value) != 5:
        raise BadFrame(reason="its head is not a list of five")
    kind, id, name, fields, payload_bytes = value
    if type(kind) is not int or not 0 <= kind < len(Kind):
        raise BadFrame(reason="its kind is unknown")
    if type(id) is not int or not 0 <= id <= U64:
        raise BadFrame(reason="its id is not a number")
    if type(payload_bytes) is not int or not 0 <= payload_bytes <= MAX_PAYLOAD:
        raise BadFrame(reason="its payload is too long")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS:
        raise BadFrame(reason="its message has no name")
    message: Message | BadMessage
    try:
        message = decode_fields(name, fields)
        if payload_bytes > message.payload_limit:
            message = BadMessage(message=name, reason=f"a payload of {payload_bytes} bytes is too long")
    except BadMessage as error:
        message = error
    return Head(Kind(kind), id, message, payload_bytes)
