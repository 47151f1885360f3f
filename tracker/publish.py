"""Taking in signed manifests, piece by piece, and giving them out again."""

from dataclasses import dataclass

import trio

from swarm.errors import SwarmError
from swarm.trust.manifest import MAX_MANIFEST_BYTES, SignedManifest, parse_signed
from swarm.wire.messages.tracker import (
    PIECE_BYTES,
    GetManifest,
    ManifestPiece,
    ManifestPublished,
    PublishManifest,
)
from swarm.wire.rpc import Buffer, Busy, Handlers, Peer
from tracker.catalogue import Catalogue
from tracker.clock import Clock
from tracker.store import Store

MAX_SIGNED_BYTES = MAX_MANIFEST_BYTES + (64 << 10)
MOST_UPLOADS = 4
UPLOAD_S = 300.0


class BrokenUpload(SwarmError):
    """The manifest's pieces do not fit together: {reason}. Publish it again from its beginning."""


class NotAnOperator(SwarmError):
    """This tracker takes manifests of known operators only, and {signer} is none; ask whoever runs it."""


@dataclass
class _Upload:
    total_bytes: int
    deadline_s: float
    received: bytearray


class Publishing:
    """The handlers of PublishManifest and GetManifest. `operators` limits who may publish; None: whoever
    comes."""

    def __init__(
        self, catalogue: Catalogue, store: Store, clock: Clock, operators: frozenset[bytes] | None = None
    ) -> None:
        self._catalogue = catalogue
        self._store = store
        self._clock = clock
        self._operators = operators
        self._uploads: dict[bytes, _Upload] = {}
        self._accepting = trio.Lock()

    def handlers(self) -> Handlers:
        """What to answer, by the type of the message."""
        return {PublishManifest: self.publish, GetManifest: self.get}

    async def load(self) -> None:
        """Reads what the store keeps. UnusableStore, or BadManifest when it was tampered with."""
        for stored in await trio.to_thread.run_sync(self._store.manifests):
            self._catalogue.add(stored, await trio.to_thread.run_sync(parse_signed, stored.signed))

    async def publish(
        self, caller: Peer, message: PublishManifest, payload: Buffer
    ) -> tuple[ManifestPublished, bytes]:
        """Takes a piece; with the last one the manifest is verified, stored, and known."""
        if message.offset == 0:
            self._begin(caller, message)
        upload = self._uploads.get(caller.key)
        if (
            upload is None
            or message.offset != len(upload.received)
            or message.total_bytes != upload.total_bytes
        ):
            raise BrokenUpload(reason="a piece came out of order, or too late")
        if not payload or len(upload.received) + len(payload) > upload.total_bytes:
            raise BrokenUpload(reason="a piece is empty or reaches beyond the end")
        upload.received += payload
        if len(upload.received) < upload.total_bytes:
            return ManifestPublished(False, len(upload.received), b""), b""
        del self._uploads[caller.key]
        root = await self.accept(bytes(upload.received), message.experts_in_layer, message.layout_signature)
        return ManifestPublished(True, upload.total_bytes, root), b""

    def _begin(self, caller: Peer, message: PublishManifest) -> None:
        now_s = self._clock.monotonic_s()
        for key in [key for key, upload in self._uploads.items() if upload.deadline_s <= now_s]:
            del self._uploads[key]
        if not 0 < message.total_bytes <= MAX_SIGNED_BYTES:
            raise BrokenUpload(reason=f"it must have between 1 and {MAX_SIGNED_BYTES} bytes")
        if len(self._uploads) >= MOST_UPLOADS and caller.key not in self._uploads:
            raise Busy(what="The tracker", retry_after_s=5)
        self._uploads[caller.key] = _Upload(message.total_bytes, now_s + UPLOAD_S, bytearray())

    async def accept(
        self, encoded: bytes, experts_in_layer: tuple[int, ...], layout_signature: bytes
    ) -> bytes:
        """Verifies a signed manifest, stores it and makes it known; returns its root.

        Raises what `parse_signed` and `Catalogue.check` raise, NotAnOperator, UnusableStore.
        """
        signed: SignedManifest = await trio.to_thread.run_sync(parse_signed, encoded)
        if self._operators is not None and not self._operators.intersection(signed.keyring.keys):
            raise NotAnOperator(signer=signed.signer)
        # One at a time: of two manifests of one name the second is judged by what the first has changed.
        async with self._accepting:
            new = self._catalogue.check(
                signed, encoded, experts_in_layer, layout_signature, self._clock.unix_s()
            )
            if new is not None:
                stored, forgotten = new
                await trio.to_thread.run_sync(self._store.publish, stored, forgotten)
                self._catalogue.add(stored, signed)
        return signed.manifest.root

    async def get(self, caller: Peer, message: GetManifest, payload: Buffer) -> tuple[ManifestPiece, bytes]:
        """Gives a piece of a signed manifest."""
        stored = self._catalogue.model(message.root).stored
        piece = stored.signed[message.offset : message.offset + PIECE_BYTES]
        return ManifestPiece(len(stored.signed), stored.experts_in_layer, stored.layout_signature), piece
