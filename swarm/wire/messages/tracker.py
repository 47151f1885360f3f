"""What peers say to a tracker, and what it answers.

Sets of chunks and experts travel in payloads, in the encoding of `swarm.wire.holdings`; where a payload holds
several, the message gives their lengths in order (`join_parts`, `split_parts`).

A peer's life: RegisterPeer; HoldChunks or HoldExperts whenever its holdings change; Heartbeat in between;
LeaveSwarm. Each Hold message has the next `revision`; heartbeats repeat the last one, and `resend` in the
answer asks for everything again. Who only asks (chat) need not register.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from swarm.wire.keys import PeerKey
from swarm.wire.messages.codec import U32, U64, BadMessage, Bounds, Message, register

PIECE_BYTES = 1 << 20
"""Manifests travel in pieces of at most this size."""
MAX_SET_BYTES = (1 << 18) + 1
"""The longest encoded set: two million chunks in any pattern."""
MAX_HOLDERS = 64
MAX_HOLDERS_BYTES = 1 << 20
MAX_PROOF_BYTES = 6 << 20
"""Holds the longest expert call with its reply, see `swarm.wire.messages.experts`."""
MAX_MODELS_LISTED = 32
RELAY_PIECE_BYTES = 1 << 15
RELAY_WINDOW_BYTES = 1 << 18
"""How much of a relayed stream may be sent before the first RelayCredit, and ahead of the receiver at all."""
MAX_LAYERS = 1024

Key = Annotated[PeerKey, Bounds(32, 32)]
Root = Annotated[bytes, Bounds(32, 32)]
Profile = Annotated[bytes, Bounds(32, 32)]
"""The digest of a numeric profile: experts of different profiles never answer for each other."""
Digest = Annotated[bytes, Bounds(32, 32)]
Count = Annotated[int, Bounds(0, U32)]
Number = Annotated[int, Bounds(0, U64)]
SetBytes = Annotated[int, Bounds(1, MAX_SET_BYTES)]
ModelName = Annotated[str, Bounds(1, 200)]
Port = Annotated[int, Bounds(0, 65535)]
Layers = Annotated[tuple[Annotated[int, Bounds(0, 65535)], ...], Bounds(0, MAX_LAYERS)]


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


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach a peer: directly at an address, through the tracker's relay, or either.

    An empty host with a port means the host at which the asker reached the tracker; port 0 means no direct
    way.
    """

    key: Key
    host: Annotated[str, Bounds(0, 255)]
    port: Port
    relay: bool


@register("register-peer")
@dataclass(frozen=True, slots=True)
class RegisterPeer(Message):
    """Makes the caller known, replacing what was known of its key. The reply may take some seconds: the
    tracker dials back. `addresses` are those the user advertises, `port` is where the peer listens at the
    address it calls from (0: nowhere), `local` says that it listens on the loopback interface only."""

    agent: Annotated[str, Bounds(0, 80)]
    addresses: Annotated[tuple[Annotated[str, Bounds(1, 300)], ...], Bounds(0, 4)]
    port: Port
    local: bool = False


@register("peer-registered")
@dataclass(frozen=True, slots=True)
class PeerRegistered(Message):
    """`generation` goes into every later message of this registration. `address` is the published one, empty
    when the peer can be reached through the relay only, and `obstacle` then says why. `unix_s` is the tracker's
    clock (0: not told)."""

    generation: Number
    observed: Annotated[str, Bounds(0, 300)]
    address: Annotated[str, Bounds(0, 300)]
    obstacle: Annotated[str, Bounds(0, 500)]
    heartbeat_ms: Count
    lifetime_ms: Count
    unix_s: Number = 0


@register("heartbeat")
@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The caller lives. `sequence` grows with each; `revision` is that of the last Hold message sent (0:
    none). The figures are moving averages of what others wait for: microseconds an expert call, calls in the
    queue."""

    generation: Number
    sequence: Number
    revision: Number
    service_us: Count = 0
    queue: Count = 0


@register("heartbeat-seen")
@dataclass(frozen=True, slots=True)
class HeartbeatSeen(Message):
    """`departures`, `models` and `bans` are counters: when one grew, donors that left make a new assignment
    worth asking for, a model was published or renewed, or a peer was banned."""

    lifetime_ms: Count
    resend: bool
    departures: Number
    models: Number
    bans: Number


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


@register("leave-swarm")
@dataclass(frozen=True, slots=True)
class LeaveSwarm(Message):
    """The caller goes; it is forgotten at once."""

    generation: Number


@register("left")
@dataclass(frozen=True, slots=True)
class Left(Message):
    """Answers LeaveSwarm."""


@register("publish-manifest", payload=PIECE_BYTES)
@dataclass(frozen=True, slots=True)
class PublishManifest(Message):
    """A piece of a signed manifest of `total_bytes`; pieces come in order from offset 0, on one connection.

    The first operator key that publishes under a name owns it. `experts_in_layer` (empty for a dense model)
    is signed by the same operator (`layout_statement`)."""

    offset: Number
    total_bytes: Number
    experts_in_layer: Layers
    layout_signature: Annotated[bytes, Bounds(64, 64)]


@register("manifest-published")
@dataclass(frozen=True, slots=True)
class ManifestPublished(Message):
    """`complete` tells that the last piece came and the manifest was accepted; `root` is then its root."""

    complete: bool
    received_bytes: Number
    root: Annotated[bytes, Bounds(0, 32)]


@register("list-models")
@dataclass(frozen=True, slots=True)
class ListModels(Message):
    """Asks for the models in order of their names, those after a name."""

    after: Annotated[str, Bounds(0, 200)] = ""


@dataclass(frozen=True, slots=True)
class ExpertCoverage:
    """How well the donors of one numeric profile cover a model's experts."""

    profile: Profile
    donors: Count
    covered: Count
    least_replicas: Count


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model: the newest version of its name, its size, and how well its chunks and experts are covered."""

    name: ModelName
    version: Number
    root: Root
    operator: Key
    manifest_bytes: Number
    model_bytes: Number
    chunks: Count
    holders: Count
    whole_holders: Count
    covered_chunks: Count
    least_replicas: Count
    experts: Count
    coverage: Annotated[tuple[ExpertCoverage, ...], Bounds(0, 4)]


@register("models")
@dataclass(frozen=True, slots=True)
class Models(Message):
    """The models; `more` when there are others after the last. `revision` is the counter in HeartbeatSeen."""

    models: Annotated[tuple[ModelSummary, ...], Bounds(0, MAX_MODELS_LISTED)]
    more: bool
    revision: Number


@register("get-manifest", reply_payload=PIECE_BYTES)
@dataclass(frozen=True, slots=True)
class GetManifest(Message):
    """Asks for a piece of a signed manifest."""

    root: Root
    offset: Number = 0


@register("manifest-piece", payload=PIECE_BYTES)
@dataclass(frozen=True, slots=True)
class ManifestPiece(Message):
    """The piece is the payload; the layout comes with each, as the operator signed it."""

    total_bytes: Number
    experts_in_layer: Layers
    layout_signature: Annotated[bytes, Bounds(64, 64)]


@register("find-chunks", payload=MAX_SET_BYTES, reply_payload=MAX_HOLDERS_BYTES)
@dataclass(frozen=True, slots=True)
class FindChunks(Message):
    """Asks who serves chunks of a model. The payload is the set wanted; empty means all of them."""

    root: Root
    most: Annotated[int, Bounds(1, MAX_HOLDERS)] = 16


@dataclass(frozen=True, slots=True)
class ChunkHolder:
    """A peer that serves some of what was asked for; `set_bytes` is the length of its part of the payload."""

    contact: Contact
    set_bytes: SetBytes


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
    """A banned peer. `proof` is the BLAKE3 digest of the proof, which GetProof returns."""

    number: Number
    key: Key
    reason: Annotated[str, Bounds(0, 500)]
    proof: Digest
    unix_s: Number


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


@register("relay-listen")
@dataclass(frozen=True, slots=True)
class RelayListen(Message):
    """A registered peer asks that streams for it come over this connection. It ends with the connection."""

    generation: Number


@register("relay-ready")
@dataclass(frozen=True, slots=True)
class RelayReady(Message):
    """Answers RelayListen, RelayOpen and RelayIncoming."""


@register("relay-open")
@dataclass(frozen=True, slots=True)
class RelayOpen(Message):
    """Asks for a stream to a relayed peer. The asker chooses an odd number for it, new on this connection."""

    stream: Count
    target: Key


@register("relay-incoming")
@dataclass(frozen=True, slots=True)
class RelayIncoming(Message):
    """The tracker tells a relayed peer of a stream; its number on this connection is even."""

    stream: Count
    source: Key


@register("relay-data", payload=RELAY_PIECE_BYTES)
@dataclass(frozen=True, slots=True)
class RelayData(Message):
    """The next bytes of a stream. Notified, never answered, in order."""

    stream: Count


@register("relay-credit")
@dataclass(frozen=True, slots=True)
class RelayCredit(Message):
    """The receiver takes the bytes of a stream up to `limit`, counted from its beginning. Notified."""

    stream: Count
    limit: Number


@register("relay-close")
@dataclass(frozen=True, slots=True)
class RelayClose(Message):
    """The sender sends no more; with `reset` the stream is gone both ways, at once, and `reason` says why.
    Notified."""

    stream: Count
    reset: bool
    reason: Annotated[str, Bounds(0, 200)] = ""


def layout_statement(root: bytes, experts_in_layer: Sequence[int]) -> bytes:
    """What an operator signs, beside the manifest, about how many experts each layer has."""
    counts = b"".join(count.to_bytes(2, "big") for count in experts_in_layer)
    return b"swarm expert layout v1\x00" + root + counts
