"""Taking in signed manifests, piece by piece, and giving them out again."""

import logging
from dataclasses import dataclass, field

import trio

from swarm.errors import SwarmError
from swarm.trust.manifest import MAX_SIGNED_BYTES, SignedManifest, parse_signed
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
from tracker.quota import Quota, Rate
from tracker.registry import bounded_network
from tracker.store import Store

log = logging.getLogger(__name__)

MOST_UPLOADS = 8
MOST_UPLOAD_BYTES = 2 * MAX_SIGNED_BYTES
"""Of all manifests that are under way at the same time."""
UPLOADS_A_NETWORK = 2
UPLOAD_S = 300.0
PIECE_S = 15.0
"""Who sends no piece for so long loses its place."""
BUSY_HINT_S = 2.0
FREE_NAMES_S = 60.0
CHANGES_A_NETWORK = Rate(per_second=1 / 60, burst=32)
"""Of manifests that were not known: each is written to the disk, and every peer asks for the models anew."""


class BrokenUpload(SwarmError):
    """The manifest's pieces do not fit together: {reason}. Publish it again from its beginning."""


class NotAnOperator(SwarmError):
    """This tracker takes models of known operators only, and {signer} is none; ask whoever runs it to name
    that key with --operator."""


@dataclass(eq=False)
class _Upload:
    total_bytes: int
    network: str | None
    deadline_s: float
    piece_due_s: float
    received: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def is_late(self, now_s: float) -> bool:
        """Whether it takes too long, or has stopped. What came whole is under way here."""
        return not self.is_whole and now_s >= min(self.deadline_s, self.piece_due_s)


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
        self._changes = Quota(CHANGES_A_NETWORK)

    def handlers(self) -> Handlers:
        """What to answer, by the type of the message."""
        return {PublishManifest: self.publish, GetManifest: self.get}

    async def load(self) -> None:
        """Reads what the store keeps. UnusableStore, or BadManifest when it was tampered with."""
        for stored in await trio.to_thread.run_sync(self._store.manifests):
            signed = await trio.to_thread.run_sync(parse_signed, stored.signed)
            self._catalogue.add(stored, signed, None, self._clock.monotonic_s())

    async def publish(
        self, caller: Peer, message: PublishManifest, payload: Buffer
    ) -> tuple[ManifestPublished, bytes]:
        """Takes a piece; with the last one the manifest is verified, stored, and known."""
        network = bounded_network(caller.address)
        if message.offset == 0:
            self._begin(caller, message, network)
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
        upload.piece_due_s = self._clock.monotonic_s() + PIECE_S
        if len(upload.received) < upload.total_bytes:
            return ManifestPublished(False, len(upload.received), b""), b""
        upload.is_whole = True
        try:
            root = await self.accept(
                upload.received, message.experts_in_layer, message.layout_signature, network
            )
        finally:
            del self._uploads[caller.key]
        return ManifestPublished(True, upload.total_bytes, root), b""

    def _begin(self, caller: Peer, message: PublishManifest, network: str | None) -> None:
        """Makes a place for an upload. Busy when there is none; what began and did not go on gives way."""
        now_s = self._clock.monotonic_s()
        if not 0 < message.total_bytes <= MAX_SIGNED_BYTES:
            raise BrokenUpload(reason=f"it must have between 1 and {MAX_SIGNED_BYTES} bytes")
        before = self._uploads.get(caller.key)
        if before is not None and before.is_whole:
            raise Busy(what="The tracker", retry_after_s=BUSY_HINT_S)
        for key in [key for key, one in self._uploads.items() if one is before or one.is_late(now_s)]:
            del self._uploads[key]
        strangers = [one for one in self._uploads.values() if one.network is not None]
        if network is not None and (
            len(strangers) >= MOST_UPLOADS
            or sum(one.network == network for one in strangers) >= UPLOADS_A_NETWORK
            or sum(one.total_bytes for one in strangers) + message.total_bytes > MOST_UPLOAD_BYTES
        ):
            raise Busy(what="The tracker", retry_after_s=BUSY_HINT_S)
        self._uploads[caller.key] = _Upload(message.total_bytes, network, now_s + UPLOAD_S, now_s + PIECE_S)

    async def accept(
        self,
        encoded: bytes | bytearray,
        experts_in_layer: tuple[int, ...],
        layout_signature: bytes,
        network: str | None = None,
    ) -> bytes:
        """Verifies a signed manifest, stores it and makes it known; returns its root.

        `network` is where it comes from; None is not bounded. Raises what `parse_signed`, `Catalogue.check` and
        `Catalogue.to_drop` raise, NotAnOperator, UnusableStore; Busy when a network publishes too often.
        """
        # One at a time: of two manifests of one name the second is judged by what the first has changed, and
        # reading one takes several times its bytes.
        async with self._accepting:
            content = bytes(encoded)
            signed: SignedManifest = await trio.to_thread.run_sync(parse_signed, content)
            if self._operators is not None and not self._operators.intersection(signed.keyring.keys):
                raise NotAnOperator(signer=signed.signer.hex())
            stored = self._catalogue.check(
                signed, content, experts_in_layer, layout_signature, self._clock.unix_s()
            )
            if stored is None:
                self._catalogue.came_from(signed.manifest.name, network)
            else:
                now_s = self._clock.monotonic_s()
                dropped = self._catalogue.to_drop(stored, signed, network, now_s)
                bounded = network is not None and self._operators is None
                if bounded and (wait_s := self._changes.take(network, now_s)):
                    raise Busy(what="The tracker", retry_after_s=round(wait_s, 1))
                await trio.to_thread.run_sync(self._store.publish, stored, dropped)
                self._catalogue.drop(dropped)
                self._catalogue.add(stored, signed, network, now_s)
        return signed.manifest.root

    async def run(self) -> None:
        """Frees names, again and again."""
        while True:
            await trio.sleep(FREE_NAMES_S)
            await self.free_names()

    async def free_names(self) -> None:
        """Forgets names that nobody serves and whose manifests count no more."""
        async with self._accepting:
            roots = self._catalogue.lapsed(self._clock.unix_s(), self._clock.monotonic_s())
            if not roots:
                return
            try:
                await trio.to_thread.run_sync(self._store.forget, roots)
            except SwarmError as error:
                # They are, the next time.
                log.warning("names that are free could not be forgotten: %s", error)
            else:
                self._catalogue.drop(roots)

    async def get(self, caller: Peer, message: GetManifest, payload: Buffer) -> tuple[ManifestPiece, bytes]:
        """Gives a piece of a signed manifest."""
        stored = self._catalogue.model(message.root).stored
        piece = stored.signed[message.offset : message.offset + PIECE_BYTES]
        return ManifestPiece(len(stored.signed), stored.experts_in_layer, stored.layout_signature), piece
