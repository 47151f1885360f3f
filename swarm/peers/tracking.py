"""A tracker as its clients see it: the models it knows, their manifests, and who serves their chunks.

Nothing a tracker says is believed: whoever asked checks the manifest, and each chunk when it comes.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from swarm.errors import SwarmError
from swarm.peers.links import Links
from swarm.trust.manifest import MAX_SIGNED_BYTES
from swarm.wire.address import Address
from swarm.wire.holdings import IndexSet
from swarm.wire.keys import PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    Ban,
    Bans,
    ChunkHolders,
    Contact,
    ExpertHolder,
    ExpertHolders,
    FindChunks,
    FindExperts,
    GetManifest,
    GetProof,
    ListBans,
    ListModels,
    ManifestPiece,
    Models,
    ModelSummary,
    Proof,
    split_parts,
)
from swarm.wire.rpc import Buffer, RemoteError

ANSWER_S = 20.0
MAX_MODELS = 10_000
MAX_BANS = 20_000
MOST_TRIES = 6
M = TypeVar("M", bound=Message)


class OddAnswer(SwarmError):
    """The tracker {address} answered {got} where {wanted} belongs; it may run another version of Swarm."""


class TrackerSilent(SwarmError):
    """The tracker {address} did not answer within {seconds} s; is it overloaded, or gone?"""


class OddManifest(SwarmError):
    """The tracker {address} sent a manifest of another length than it announced; it was not used."""


class OddBans(SwarmError):
    """The tracker {address} lists its bans {how}; it is broken, or means harm."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[M]):
    """What the tracker said, and the bytes that followed."""

    message: M
    payload: Buffer


@dataclass(frozen=True, slots=True)
class ManifestBytes:
    """A signed manifest as it came, with the number of experts in each layer as the operator signed it."""

    content: bytes
    experts_in_layer: tuple[int, ...]
    layout_signature: bytes


@dataclass(frozen=True, slots=True)
class Holder:
    """A peer that serves some chunks."""

    contact: Contact
    chunks: IndexSet
    lent: bool = False
    """It holds what the tracker told it to."""


@dataclass(frozen=True, slots=True)
class ExpertsHeld:
    """A peer that runs some experts, as the tracker told."""

    holder: ExpertHolder
    ready: IndexSet
    resident: IndexSet


class TrackerClient:
    """Asks one tracker; connects when needed and again when the connection was lost."""

    def __init__(self, links: Links, address: Address, key: bytes | None) -> None:
        self._links = links
        self.address = address
        self.key = key

    async def connect(self) -> PeerKey:
        """Connects now, whatever failed before; gives the tracker's key, which is pinned from here on."""
        peer = await self._links.peer(self.address, self.key, patient=True)
        self.key = peer.key
        return peer.key

    async def models(self) -> tuple[ModelSummary, ...]:
        """All models, by name."""
        found: list[ModelSummary] = []
        while True:
            after = found[-1].name if found else ""
            answer = (await self.ask(ListModels(after), Models)).message
            found += answer.models
            if not answer.more or not answer.models or len(found) > MAX_MODELS:
                return tuple(found)

    async def manifest(self, root: bytes) -> ManifestBytes:
        """The signed manifest with a root, unchecked."""
        content = bytearray()
        while True:
            reply = await ask_again(self, GetManifest(root, len(content)), ManifestPiece)
            piece = reply.message
            content += reply.payload
            if not 0 < piece.total_bytes <= MAX_SIGNED_BYTES or len(content) > piece.total_bytes:
                raise OddManifest(address=self.address)
            if len(content) == piece.total_bytes:
                return ManifestBytes(bytes(content), piece.experts_in_layer, piece.layout_signature)
            if not reply.payload:
                raise OddManifest(address=self.address)

    async def holders(self, root: bytes, wanted: IndexSet | None, chunk_count: int) -> tuple[Holder, ...]:
        """Who serves the wanted chunks of a model (None: all of them)."""
        payload = b"" if wanted is None else wanted.encode()
        reply = await self.ask(FindChunks(root), ChunkHolders, payload)
        answer = reply.message
        parts = split_parts(
            bytes(reply.payload), [holder.set_bytes for holder in answer.holders], ChunkHolders.kind
        )
        return tuple(
            Holder(holder.contact, IndexSet.decode(part, chunk_count), holder.lent)
            for holder, part in zip(answer.holders, parts, strict=True)
        )

    async def executors(
        self, root: bytes, profile: bytes, wanted: IndexSet | None, expert_count: int
    ) -> tuple[ExpertsHeld, ...]:
        """Who runs the wanted experts of a model in a numeric profile (None: all of them)."""
        payload = b"" if wanted is None else wanted.encode()
        reply = await self.ask(FindExperts(root, profile), ExpertHolders, payload)
        holders = reply.message.holders
        lengths = [length for one in holders for length in (one.ready_bytes, one.resident_bytes)]
        parts = split_parts(bytes(reply.payload), lengths, ExpertHolders.kind)
        sets = [IndexSet.decode(part, expert_count) for part in parts]
        return tuple(
            ExpertsHeld(one, ready, resident)
            for one, ready, resident in zip(holders, sets[0::2], sets[1::2], strict=True)
        )

    def address_of(self, contact: Contact) -> Address | None:
        """Where to reach a peer directly; None when only the relay reaches it.

        The tracker's own process is reached as the tracker was; an empty host means the tracker's.
        """
        if contact.key == self.key:
            return self.address
        return Address(contact.host or self.address.host, contact.port) if contact.port else None

    async def ask(self, message: Message, wanted: type[M], payload: Buffer = b"") -> Answer[M]:
        """One question and its answer.

        Raises:
            TrackerSilent, OddAnswer: the tracker did not answer, or not that question.
            SwarmError: it cannot be reached, or refused.
        """
        peer = await self._links.peer(self.address, self.key, patient=True)
        with trio.move_on_after(ANSWER_S) as scope:
            reply = await peer.request(message, payload)
        if scope.cancelled_caught:
            raise TrackerSilent(address=self.address, seconds=f"{ANSWER_S:.0f}")
        if not isinstance(reply.message, wanted):
            raise OddAnswer(address=self.address, got=reply.message.kind, wanted=wanted.kind)
        return Answer(reply.message, reply.payload)

    async def notify(self, message: Message) -> None:
        """Says something that needs no answer. Raises SwarmError when it cannot be said."""
        peer = await self._links.peer(self.address, self.key, patient=True)
        await peer.notify(message)


async def list_bans(tracker: TrackerClient) -> tuple[Ban, ...]:
    """Everybody who is banned at a tracker, in order.

    Raises:
        OddBans: their numbers do not rise, so that there may be no end to them, or they are too many.
        SwarmError: as `TrackerClient.ask`.
    """
    found: list[Ban] = []
    last = 0
    while True:
        answer = (await tracker.ask(ListBans(last), Bans)).message
        for ban in answer.bans:
            if ban.number <= last:
                raise OddBans(address=tracker.address, how="out of order")
            last = ban.number
        found += answer.bans
        if len(found) > MAX_BANS:
            raise OddBans(address=tracker.address, how=f"without end: more than {MAX_BANS}")
        if not answer.more or not answer.bans:
            return tuple(found)


async def ask_again(
    tracker: TrackerClient, message: Message, wanted: type[M], payload: Buffer = b""
) -> Answer[M]:
    """One question and its answer; asked again, a few times, while the tracker says that it is busy.

    Raises as `TrackerClient.ask`.
    """
    for attempt in range(1, MOST_TRIES):
        try:
            return await tracker.ask(message, wanted, payload)
        except RemoteError as error:
            if error.retry_after_s is None:
                raise
            pause_s = attempt * error.retry_after_s
        await trio.sleep(pause_s)
    return await tracker.ask(message, wanted, payload)


async def get_proof(tracker: TrackerClient, digest: bytes) -> bytes:
    """A proof that a tracker keeps, unchecked. Raises SwarmError."""
    return bytes((await ask_again(tracker, GetProof(digest), Proof)).payload)
