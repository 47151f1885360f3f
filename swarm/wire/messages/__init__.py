"""What peers say to each other: frozen dataclasses with declared bounds, one registry, strict decoding.

`codec` says how to declare a message; `common` holds those that every conversation needs; the other modules
hold one conversation each.
"""

from swarm.wire.messages.codec import (
    U32,
    U64,
    BadMessage,
    Bounds,
    Message,
    decode_fields,
    encode_fields,
    register,
)
from swarm.wire.messages.common import Cancel, Failure, Goodbye, Ping, Pong

__all__ = [
    "U32",
    "U64",
    "BadMessage",
    "Bounds",
    "Cancel",
    "Failure",
    "Goodbye",
    "Message",
    "Ping",
    "Pong",
    "decode_fields",
    "encode_fields",
    "register",
]
