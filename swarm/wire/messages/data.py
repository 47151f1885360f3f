"""Asking for a model's bytes: one chunk of 1 MiB a request, named by the manifest and the chunk's number.

Chunks are numbered through all files of the manifest in order (`swarm.wire.holdings`). A request stays small
and its reply is of a known size, so that a server can set its memory aside before it reads; throughput comes
from asking for several at once.
"""

from dataclasses import dataclass
from typing import Annotated

from swarm.wire.holdings import MAX_INDICES
from swarm.wire.messages.codec import Bounds, Message, register

CHUNK_BYTES = 1 << 20
ROOT_BYTES = 32


@register("read-chunk", reply_payload=CHUNK_BYTES)
@dataclass(frozen=True, slots=True)
class ReadChunk(Message):
    """Asks for one chunk of a model. The answer is Chunk with the chunk's bytes as payload."""

    root: Annotated[bytes, Bounds(ROOT_BYTES, ROOT_BYTES)]
    """The root of the manifest that says which model and which version."""
    index: Annotated[int, Bounds(0, MAX_INDICES - 1)]


@register("chunk", payload=CHUNK_BYTES)
@dataclass(frozen=True, slots=True)
class Chunk(Message):
    """The bytes of the chunk that was asked for; whoever asked checks them."""
