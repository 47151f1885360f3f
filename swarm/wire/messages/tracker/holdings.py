"""Who holds what, who should, and who is to be asked.

Sets of chunks and experts travel in payloads, in the encoding of `swarm.wire.holdings`; where a payload holds
several, the message gives their lengths in order (`join_parts`, `split_parts`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import BadMessage, Bounds, Message, register
from swarm.wire.messages.tracker.fields import MAX_SET_BYTES, Count, Number, Profile, Root, SetBytes
from swarm.wire.messages.tracker.registration import Contact

MAX_HOLDERS = 64
MAX_HOLDERS_BYTES = 1 << 20


@register("hold-chunks", payload=2 * MAX_SET_BYTES)
@dataclass(frozen=True, slots=True)
class HoldChunks(Message):
    """The chunks of a model that the caller serves. With `base` 0 the payload is the whole set; else it is
    what was added and what was removed since revision `base`, which must be the last one the tracker
    knows."""

    generation: Number
    revision: Number
    base: Number
    root: Root
    parts: Annotated[tuple[SetBytes, ...], Bounds(1, 2)]


@register("hold-experts", payload=2 * MAX_SET_BYTES)
@dataclass(frozen=True, slots=True)
class HoldExperts(Message):
    """The experts the caller answers for. The payload is two sets: those it is ready to run, and those of
    them in its RAM. `last_resort` marks an executor that should be asked only when no donor answers."""

    generation: Number
    revision: Number
    root: Root
    profile: Profile
    last_resort: bool
    parts: Annotated[tuple[SetBytes, ...], Bounds(2, 2)]


@register("held")
@dataclass(frozen=True, slots=True)
class Held(Message):
    """The tracker knows the holdings up to this revision."""

    revision: Number


@register("find-chunks", payload=MAX_SET_BYTES, reply_payload=MAX_HOLDERS_BYTES)
@dataclass(frozen=True, slots=True)
class FindChunks(Message):
    """Asks who serves chunks of a model. The payload is the set wanted; empty means all of them."""

    root: Root
    most: Annotated[int, Bounds(1, MAX_HOLDERS)] = 16


@dataclass(frozen=True, slots=True)
class ChunkHolder:
    """A peer that serves some of what was asked for; `set_bytes` is the length of its part of the payload. `lent`:
    it asked the tracker what to hold, as a donor of disk does and a maintainer does not."""

    contact: Contact
    set_bytes: SetBytes
    lent: bool


@register("chunk-holders", payload=MAX_HOLDERS_BYTES)
@dataclass(frozen=True, slots=True)
class ChunkHolders(Message):
    """The holders, each with a part of the payload: which of the wanted chunks it serves. Together they serve
    every wanted chunk that anybody serves, unless `cut`: then ask again for what is missing."""

    holders: Annotated[tuple[ChunkHolder, ...], Bounds(0, MAX_HOLDERS)]
    cut: bool


@register("find-experts", payload=MAX_SET_BYTES, reply_payload=MAX_HOLDERS_BYTES)
@dataclass(frozen=True, slots=True)
class FindExperts(Message):
    """Asks who runs experts of a model in a numeric profile. An empty payload means all experts."""

    root: Root
    profile: Profile
    most: Annotated[int, Bounds(1, MAX_HOLDERS)] = 32


@dataclass(frozen=True, slots=True)
class ExpertHolder:
    """A peer that runs some of what was asked for, with the figures of its last heartbeat. Its part of the
    payload is two sets: those ready, and those of them in RAM."""

    contact: Contact
    last_resort: bool
    service_us: Count
    queue: Count
    ready_bytes: SetBytes
    resident_bytes: SetBytes


@register("expert-holders", payload=MAX_HOLDERS_BYTES)
@dataclass(frozen=True, slots=True)
class ExpertHolders(Message):
    """The holders of experts, as in ChunkHolders."""

    holders: Annotated[tuple[ExpertHolder, ...], Bounds(0, MAX_HOLDERS)]
    cut: bool


@register("assign-chunks", payload=MAX_SET_BYTES, reply_payload=MAX_SET_BYTES)
@dataclass(frozen=True, slots=True)
class AssignChunks(Message):
    """A registered disk donor asks what to hold: `capacity` chunks of a model. The payload is what it has."""

    generation: Number
    root: Root
    capacity: Count


@register("assign-experts", payload=MAX_SET_BYTES, reply_payload=MAX_SET_BYTES)
@dataclass(frozen=True, slots=True)
class AssignExperts(Message):
    """A registered compute donor asks what to hold: `capacity` experts. The payload is what it has."""

    generation: Number
    root: Root
    profile: Profile
    capacity: Count


@register("assigned", payload=MAX_SET_BYTES)
@dataclass(frozen=True, slots=True)
class Assigned(Message):
    """The payload is the set the donor should hold from now on."""


def join_parts(parts: Iterable[bytes]) -> tuple[tuple[int, ...], bytes]:
    """The lengths of the parts, and the parts as one payload."""
    kept = list(parts)
    return tuple(len(part) for part in kept), b"".join(kept)


def split_parts(payload: bytes | bytearray | memoryview, lengths: Sequence[int], kind: str) -> list[bytes]:
    """The parts of a payload. BadMessage unless their lengths add up to it exactly."""
    if sum(lengths) != len(payload):
        raise BadMessage(
            message=kind, reason=f"its payload has {len(payload)} bytes, its parts {sum(lengths)}"
        )
    parts, start = [], 0
    for length in lengths:
        parts.append(bytes(payload[start : start + length]))
        start += length
    return parts
