"""Proofs against liars, and the bans that follow from them."""

from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import Bounds, Message, register
from swarm.wire.messages.tracker.fields import Digest, Key, Number, Profile, Root

MAX_PROOF_BYTES = 6 << 20
"""Holds the longest expert call with its reply, see `swarm.wire.messages.experts`."""


@register("report-liar", payload=MAX_PROOF_BYTES)
@dataclass(frozen=True, slots=True)
class ReportLiar(Message):
    """Accuses a peer. The payload is the proof, which the tracker verifies itself before it believes it."""

    accused: Key
    root: Root
    profile: Profile


@register("liar-judged")
@dataclass(frozen=True, slots=True)
class LiarJudged(Message):
    """Whether the accused is banned now; `reason` says what the proof showed or lacked."""

    banned: bool
    reason: Annotated[str, Bounds(0, 500)]


@register("list-bans")
@dataclass(frozen=True, slots=True)
class ListBans(Message):
    """Asks for bans after a number; the first ban is number 1."""

    after: Number = 0


@dataclass(frozen=True, slots=True)
class Ban:
    """A banned peer. `proof` is the BLAKE3 digest of the proof, which GetProof returns while it is `kept`."""

    number: Number
    key: Key
    reason: Annotated[str, Bounds(0, 500)]
    proof: Digest
    unix_s: Number
    kept: bool


@register("bans")
@dataclass(frozen=True, slots=True)
class Bans(Message):
    """Bans in order of their numbers; `more` when there are others after the last."""

    bans: Annotated[tuple[Ban, ...], Bounds(0, 64)]
    more: bool


@register("get-proof", reply_payload=MAX_PROOF_BYTES)
@dataclass(frozen=True, slots=True)
class GetProof(Message):
    """Asks for a proof by its digest."""

    digest: Digest


@register("proof", payload=MAX_PROOF_BYTES)
@dataclass(frozen=True, slots=True)
class Proof(Message):
    """The payload is the proof."""
