"""Asking another peer to run routed experts: what is agreed once a connection, then one request a layer.

OpenExperts settles the numeric profile and gives a short number for it, so that a request for a token's layer
is hardly larger than the row it carries. The payload of RunExperts, all little endian:

    pairs × uint16     the expert of each (expert, row) pair
    pairs × uint16     its row
    rows × hidden      integer path: int8 values, hidden rounded up to 32; float path: float32
    rows × groups      integer path only: float32 scale of each 32 values

and that of ExpertOutputs, in the pairs' order:

    pairs × hidden     integer path: int16; float path: float32
    pairs × groups     integer path only: float32 scales

Numbers of rows follow from the lengths. Every reply carries the donor's signature over digests of request
and reply (`swarm.trust.receipts`), so that a wrong answer can be proven to third parties.
"""

from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import U32, Bounds, Message, register

MAX_ROWS_BYTES = 1 << 20
"""The longest payload of a request."""
MAX_OUTPUTS_BYTES = 4 << 20
"""The longest payload of a reply to RunManyExperts."""
FEW_OUTPUTS_BYTES = 1 << 18
"""The longest payload of a reply to RunExperts: a server sets so much aside for each call in its queue."""
MAX_PAIRS = 1 << 14

Digest = Annotated[bytes, Bounds(32, 32)]
Number = Annotated[int, Bounds(0, U32)]


@register("open-experts")
@dataclass(frozen=True, slots=True)
class OpenExperts(Message):
    """Asks to run experts in a numeric profile: the version of the arithmetic, the manifest, the weights."""

    numerics: Number
    root: Digest
    weights: Annotated[str, Bounds(1, 16)]


@register("experts-open")
@dataclass(frozen=True, slots=True)
class ExpertsOpen(Message):
    """`bank` goes into every request; it means the same as long as the process lives."""

    bank: Annotated[int, Bounds(0, 65535)]


@register("run-experts", payload=MAX_ROWS_BYTES, reply_payload=FEW_OUTPUTS_BYTES)
@dataclass(frozen=True, slots=True)
class RunExperts(Message):
    """Runs experts of one layer on some rows; see the module for the payload."""

    bank: Annotated[int, Bounds(0, 65535)]
    layer: Annotated[int, Bounds(0, 65535)]
    pairs: Annotated[int, Bounds(0, MAX_PAIRS)]


@register("run-many-experts", payload=MAX_ROWS_BYTES, reply_payload=MAX_OUTPUTS_BYTES)
@dataclass(frozen=True, slots=True)
class RunManyExperts(RunExperts):
    """The same with room for a longer reply: prompts and batches."""


@register("expert-outputs", payload=MAX_OUTPUTS_BYTES)
@dataclass(frozen=True, slots=True)
class ExpertOutputs(Message):
    """The outputs, and the donor's signature that they answer the request.

    What is signed is the digest of this message with a receipt of zeros."""

    receipt: Annotated[bytes, Bounds(64, 64)]
