"""Receipts: a donor's signature that it gave this reply to that request, so that a lie can be proven."""

from dataclasses import dataclass
from functools import lru_cache

from blake3 import blake3

from swarm.wire import cbor
from swarm.wire.keys import KeyPair, PeerKey, verify
from swarm.wire.messages import Message, encode_fields

_REQUEST_CONTEXT = "swarm request digest v1"
_REPLY_CONTEXT = "swarm reply digest v1"
_TAG = b"swarm receipt v1\0"


@dataclass(frozen=True)
class Receipt:
    """Who signed that ``reply`` answers ``request`` under a numeric profile; all but the key are digests."""

    donor: PeerKey
    profile: bytes
    request: bytes
    reply: bytes
    signature: bytes

    def check(self) -> None:
        """Raises BadSignature unless the donor signed it."""
        verify(self.donor, _signed_bytes(self.profile, self.request, self.reply), self.signature)


def request_digest(message: Message, payload: bytes | bytearray | memoryview) -> bytes:
    """The 32 bytes that name a request with all it carries."""
    return _digest(message, payload, _REQUEST_CONTEXT)


def reply_digest(message: Message, payload: bytes | bytearray | memoryview) -> bytes:
    """The 32 bytes that name a reply with all it carries (a receipt travels outside of what it is over)."""
    return _digest(message, payload, _REPLY_CONTEXT)


def give_receipt(keys: KeyPair, *, profile: bytes, request: bytes, reply: bytes) -> Receipt:
    """Signs a receipt over three digests of 32 bytes."""
    signature = keys.sign(_signed_bytes(profile, request, reply))
    return Receipt(keys.key, profile, request, reply, signature)


def _digest(message: Message, payload: bytes | bytearray | memoryview, context: str) -> bytes:
    hasher = blake3(_head(message, len(payload)), derive_key_context=context)
    hasher.update(payload)
    return hasher.digest()


@lru_cache(maxsize=512)
def _head(message: Message, payload_bytes: int) -> bytes:
    head = cbor.encode([type(message).kind, encode_fields(message), payload_bytes])
    return len(head).to_bytes(8, "big") + head


def _signed_bytes(profile: bytes, request: bytes, reply: bytes) -> bytes:
    if not len(profile) == len(request) == len(reply) == 32:
        raise ValueError("a receipt is over three digests of 32 bytes")
    return _TAG + profile + request + reply
