"""Keys and primitives: Ed25519 to be known by, X25519 and ChaCha20-Poly1305 to speak in secret.

Thin wrappers of libsodium that refuse what the standards let pass or leave open: low-order points,
signatures and keys that are not canonical. An identity has one secret, its Ed25519 seed; its X25519 key is
the birational image of it, so whoever knows a peer's identity can address an encrypted handshake to it.
"""

import secrets
from dataclasses import dataclass, field
from typing import NewType

import nacl.bindings as sodium
from nacl.exceptions import CryptoError

from swarm.errors import SwarmError

PeerKey = NewType("PeerKey", bytes)
"""An Ed25519 public key, 32 bytes: the name by which a peer is known."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_ORDER = 2**252 + 27742317777372353535851937790883648493
_FIELD = 2**255 - 19


class BadKey(SwarmError):
    """{what} is not a usable key: {reason}."""


class BadSignature(SwarmError):
    """A signature by {signer} does not hold; what it signs was not used."""


@dataclass(frozen=True)
class KeyPair:
    """A peer's identity: its Ed25519 seed (32 secret bytes) and what follows from it."""

    seed: bytes = field(repr=False)
    key: PeerKey = field(init=False)
    """The public Ed25519 key."""
    static: bytes = field(init=False, repr=False)
    """The public X25519 key."""
    _signing: bytes = field(init=False, repr=False)
    _exchange: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise BadKey(what="A seed", reason=f"it has {len(self.seed)} bytes instead of {KEY_BYTES}")
        public, signing = sodium.crypto_sign_seed_keypair(self.seed)
        exchange = sodium.crypto_sign_ed25519_sk_to_curve25519(signing)
        for name, value in (
            ("key", PeerKey(public)),
            ("static", sodium.crypto_scalarmult_base(exchange)),
            ("_signing", signing),
            ("_exchange", exchange),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def generate(cls) -> "KeyPair":
        """A new identity from the system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @property
    def exchange_secret(self) -> bytes:
        """The secret X25519 key, for the Noise handshake."""
        return self._exchange

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of a message; callers put a domain tag in front."""
        return sodium.crypto_sign(message, self._signing)[:SIGNATURE_BYTES]


def verify(key: bytes, message: bytes, signature: bytes) -> None:
    """Checks an Ed25519 signature strictly (RFC 8032, with canonical keys, points and scalars only).

    Raises BadSignature; the signer it names is the key.
    """
    if (
        len(key) != KEY_BYTES
        or len(signature) != SIGNATURE_BYTES
        or int.from_bytes(signature[32:], "little") >= _ORDER
        or _y(key) >= _FIELD
        or _y(signature[:32]) >= _FIELD
    ):
        raise BadSignature(signer=bytes(key))
    try:
        sodium.crypto_sign_open(bytes(signature) + bytes(message), bytes(key))
    except CryptoError:
        raise BadSignature(signer=bytes(key)) from None


def _y(point: bytes) -> int:
    return int.from_bytes(point, "little") & (2**255 - 1)


def exchange(secret: bytes, public: bytes) -> bytes:
    """The X25519 shared secret. Raises BadKey for a low-order point, whose result anybody could know."""
    if len(public) != KEY_BYTES:
        raise BadKey(what="An X25519 key", reason=f"it has {len(public)} bytes instead of {KEY_BYTES}")
    try:
        return sodium.crypto_scalarmult(secret, bytes(public))
    except CryptoError:
        raise BadKey(what="An X25519 key", reason="it is a low-order point") from None


def static_of(key: bytes) -> bytes:
    """The X25519 key that belongs to an Ed25519 key. Raises BadKey when it is no point of the main group."""
    try:
        return sodium.crypto_sign_ed25519_pk_to_curve25519(bytes(key))
    except (CryptoError, TypeError):
        raise BadKey(what="An Ed25519 key", reason="it is no point of the prime-order group") from None
