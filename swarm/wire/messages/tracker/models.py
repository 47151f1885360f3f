"""Publishing models and finding out which there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from swarm.wire.messages.codec import Bounds, Message, register
from swarm.wire.messages.tracker.fields import Count, Key, Layers, ModelName, Number, Profile, Root

PIECE_BYTES = 1 << 20
"""Manifests travel in pieces of at most this size."""
MAX_MODELS_LISTED = 32


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


def layout_statement(root: bytes, experts_in_layer: Sequence[int]) -> bytes:
    """What an operator signs, beside the manifest, about how many experts each layer has."""
    counts = b"".join(count.to_bytes(2, "big") for count in experts_in_layer)
    return b"swarm expert layout v1\x00" + root + counts
