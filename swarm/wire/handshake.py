"""How two peers come to trust a connection, sans-IO: Noise, each side's identity, and the swarm's token.

 1. The initiator sends a preface (magic, version, mode) and the first Noise message. The mode is IK when it
    knows whom it calls, else XX; with the token as psk when it has one. Preface and roles are the prologue,
    so nobody between the two can change the mode unnoticed.
 2. Each side's payload carries its Ed25519 key and that key's signature over role and handshake hash: the
    holder of that identity is in this very handshake. The initiator of an XX learns the responder's before
    it shows its own.
 3. Beside it each says by one byte whether what follows may be under AESGCM, which a side offers where it has
    that in hardware and it measures faster. It is used when both say so; the handshake itself is always under
    ChaChaPoly, and nobody between the two can change the byte.
 4. Whoever reads the last message confirms it with an empty record. The other side believes the handshake
    done only then: so a wrong token is noticed by both, and a replayed first message leads nowhere.

A side that gives up says why in a refusal: a record too short to be a Noise message. Refusals are not
authenticated, so they only choose the words of an error, never a weaker way to go on.
"""

from dataclasses import dataclass
from enum import IntEnum

from swarm.errors import SwarmError
from swarm.wire import aead
from swarm.wire.aead import LENGTH_BYTES, Tampered
from swarm.wire.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    BadKey,
    BadSignature,
    KeyPair,
    PeerKey,
    static_of,
    verify,
)
from swarm.wire.noise import Cipher, DhKeys, Handshake, NoiseError

VERSION = 1
MAGIC = b"SWRM"
PREFACE_BYTES = len(MAGIC) + 2
_PROLOGUE = b"swarm wire protocol: the initiator asks to speak, the responder answers\0"
_PROOF_TAG = b"swarm identity proof v1\0"


class HandshakeFailed(SwarmError):
    """The handshake with {peer} failed: {reason}."""


class WrongToken(SwarmError):
    """{peer} has another token than this side; get a fresh invite from the swarm's operator."""


class TokenNeeded(SwarmError):
    """{peer} belongs to a private swarm; an invite or token is needed to speak with it."""


class TokenNotUsed(SwarmError):
    """{peer} belongs to an open swarm, but a token was given; leave it out, or check the address."""


class KeyChanged(SwarmError):
    """{peer} proved the key {found} where {expected} was expected, and was refused.

    Somebody else may be answering there. Only a new invite, or forgetting the old key, can change that.
    """


class OtherVersion(SwarmError):
    """{peer} speaks version {theirs} of the protocol, this side version {ours}; update the older one."""


class TurnedAway(SwarmError):
    """{peer} turned this side away: {reason}."""


class UnknownStatic(SwarmError):
    """{peer} could not read a message to the key it was expected to have."""


class Refusal(IntEnum):
    """Why a side gave up; the first byte of a refusal record."""

    VERSION = 1
    TOKEN_NEEDED = 2
    TOKEN_NOT_USED = 3
    WRONG_TOKEN = 4
    UNKNOWN_STATIC = 5
    BUSY = 6
    IDENTITY = 7
    MALFORMED = 8
    TOO_SLOW = 9
    NOT_ADMITTED = 10


_REASONS = {
    Refusal.BUSY: "it has too many connections; try again later",
    Refusal.NOT_ADMITTED: "it does not admit this peer",
    Refusal.TOO_SLOW: "the handshake took too long",
    Refusal.IDENTITY: "it did not accept our identity",
    Refusal.MALFORMED: "it could not read what we sent",
}


class Mode(IntEnum):
    """The handshakes that are spoken; the last byte of the preface."""

    XX = 0
    IK = 1
    XX_PSK = 2
    IK_PSK = 3

    @property
    def protocol(self) -> str:
        """The Noise protocol's name."""
        return f"Noise_{('XX', 'IK', 'XXpsk3', 'IKpsk2')[self]}_25519_ChaChaPoly_BLAKE2s"

    @property
    def has_psk(self) -> bool:
        """Whether a token is mixed in."""
        return self in (Mode.XX_PSK, Mode.IK_PSK)

    @property
    def is_pinned(self) -> bool:
        """Whether the initiator knows the responder's key."""
        return self in (Mode.IK, Mode.IK_PSK)


@dataclass(frozen=True)
class Session:
    """What a finished handshake leaves: the other side's proven identity, a shared name, two ciphers."""

    key: PeerKey
    hash: bytes
    mode: Mode
    sends: Cipher
    receives: Cipher
    confirms: bool
    """Whether this side read the last message and so sends the confirming record."""


def refusal_record(refusal: Refusal) -> bytes:
    """The record that tells the other side why this one gives up."""
    body = bytes([refusal, VERSION])
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def refusal_error(body: bytes, peer: str) -> SwarmError:
    """The error that the other side's refusal stands for."""
    code, version = (body[0], body[1]) if len(body) == 2 else (0, 0)
    if code == Refusal.VERSION:
        return OtherVersion(peer=peer, theirs=version, ours=VERSION)
    if code == Refusal.TOKEN_NEEDED:
        return TokenNeeded(peer=peer)
    if code == Refusal.TOKEN_NOT_USED:
        return TokenNotUsed(peer=peer)
    if code == Refusal.WRONG_TOKEN:
        return WrongToken(peer=peer)
    if code == Refusal.UNKNOWN_STATIC:
        return UnknownStatic(peer=peer)
    if code in _REASONS:
        return TurnedAway(peer=peer, reason=_REASONS[Refusal(code)])
    return HandshakeFailed(peer=peer, reason="it gave up without a reason that is known here")


class Greeter:
    """One side of the handshake: what it sends first, and what it answers to each record.

    ``psk`` is the token; ``expected_key`` the identity the other side must prove; ``pinned`` False makes an
    initiator that expects a key begin with XX all the same; ``suite`` is what to encipher with if the other
    side prefers it too, by default what is fastest here. After an error, `refusal` is what to tell the
    other side, if anything.
    """

    def __init__(
        self,
        keys: KeyPair,
        *,
        initiator: bool,
        psk: bytes | None = None,
        expected_key: bytes | None = None,
        pinned: bool = True,
        peer: str = "The peer",
        suite: aead.Suite | None = None,
    ) -> None:
        self.peer = peer
        self.initiator = initiator
        self.session: Session | None = None
        self.refusal: Refusal | None = None
        self._keys = keys
        self._psk = psk
        self._expected_key = expected_key
        self._suite = suite or aead.preferred()
        self._key: PeerKey | None = None
        self._step = 0
        pinned = initiator and pinned and expected_key is not None
        self._mode = Mode(int(pinned) + (2 if psk is not None else 0))
        self._noise: Handshake | None = None

    def start(self) -> bytes:
        """The initiator's first bytes: preface and first record. Raises BadKey for an impossible key."""
        preface = MAGIC + bytes([VERSION, self._mode])
        return preface + self._write(self._begin(preface))

    def read_preface(self, preface: bytes) -> None:
        """Takes the initiator's preface. Raises the errors of this module."""
        if preface[: len(MAGIC)] != MAGIC:
            raise self._failed(Refusal.MALFORMED, "it does not speak the swarm's protocol")
        version, mode = preface[len(MAGIC)], preface[len(MAGIC) + 1]
        if version != VERSION:
            self.refusal = Refusal.VERSION
            raise OtherVersion(peer=self.peer, theirs=version, ours=VERSION)
        if mode >= len(Mode):
            raise self._failed(Refusal.MALFORMED, "it asks for an unknown kind of handshake")
        self._mode = Mode(mode)
        if self._mode.has_psk and self._psk is None:
            self.refusal = Refusal.TOKEN_NOT_USED
            raise TokenNotUsed(peer=self.peer)
        if self._psk is not None and not self._mode.has_psk:
            self.refusal = Refusal.TOKEN_NEEDED
            raise TokenNeeded(peer=self.peer)
        self._begin(preface)

    def read(self, message: bytes) -> bytes:
        """Takes the other side's Noise message; returns the record that answers it, or nothing.

        When `session` is set afterwards, the handshake is done. Raises the errors of this module.
        """
        noise = self._noise
        if noise is None:
            raise self._failed(Refusal.MALFORMED, "its messages are out of order")
        try:
            payload = noise.read(message)
        except Tampered:
            raise self._undecipherable(noise) from None
        except (NoiseError, BadKey) as error:
            raise self._failed(Refusal.MALFORMED, str(error)) from None
        self._check(noise, payload)
        self._step += 1
        if noise.finished:
            self._finish(noise, confirms=True)
            return b""
        return self._write(noise)

    @property
    def _is_silent(self) -> bool:
        """Whether the message at hand shows nobody's identity: the first of an XX is not enciphered."""
        return self._step == 0 and not self._mode.is_pinned

    def _begin(self, preface: bytes) -> Handshake:
        known = self.initiator and self._mode.is_pinned
        self._noise = Handshake(
            self._mode.protocol,
            initiator=self.initiator,
            prologue=_PROLOGUE + preface,
            static=DhKeys.of_identity(self._keys),
            remote_static=static_of(self._expected_key or b"") if known else None,
            psk=self._psk,
        )
        return self._noise

    def _write(self, noise: Handshake) -> bytes:
        message = noise.write(b"" if self._is_silent else self._proof)
        self._step += 1
        if noise.finished:
            self._finish(noise, confirms=False)
        return len(message).to_bytes(LENGTH_BYTES, "big") + message

    def _proof(self, handshake_hash: bytes) -> bytes:
        signed = _proof_message(self.initiator, handshake_hash, self._keys.static)
        return self._keys.key + self._keys.sign(signed) + bytes([self._suite is not aead.CHACHA])

    def _check(self, noise: Handshake, payload: bytes) -> None:
        if self._is_silent:
            if payload:
                raise self._failed(Refusal.MALFORMED, "its first message says more than it may")
            return
        key, signature, wish = payload[:KEY_BYTES], payload[KEY_BYTES:-1], payload[-1:]
        signed = _proof_message(not self.initiator, noise.payload_hash, noise.remote_static or b"")
        if len(signature) != SIGNATURE_BYTES or wish not in (b"\0", b"\1"):
            raise self._failed(Refusal.IDENTITY, "it did not prove an identity")
        try:
            verify(key, signed, signature)
        except BadSignature:
            raise self._failed(Refusal.IDENTITY, "it did not prove its identity") from None
        if self._expected_key is not None and key != self._expected_key:
            self.refusal = Refusal.IDENTITY
            raise KeyChanged(peer=self.peer, found=key, expected=self._expected_key)
        self._key = PeerKey(key)
        if wish == b"\0":
            self._suite = aead.CHACHA

    def _finish(self, noise: Handshake, *, confirms: bool) -> None:
        assert self._key is not None
        sends, receives = noise.split(self._suite)
        self.session = Session(self._key, noise.hash, self._mode, sends, receives, confirms)

    def _undecipherable(self, noise: Handshake) -> SwarmError:
        """What it means that a message did not decipher, judged by how far its reading came."""
        if not self.initiator and self._mode.is_pinned and noise.remote_static is None:
            self.refusal = Refusal.UNKNOWN_STATIC
            return HandshakeFailed(peer=self.peer, reason="it called for a key that is not ours")
        # The token enters last, just before the payload of the last message.
        if self._mode.has_psk and noise.on_last_message and noise.remote_static is not None:
            self.refusal = Refusal.WRONG_TOKEN
            return WrongToken(peer=self.peer)
        return self._failed(Refusal.MALFORMED, "a message was changed on its way")

    def _failed(self, refusal: Refusal, reason: str) -> SwarmError:
        self.refusal = refusal
        return HandshakeFailed(peer=self.peer, reason=reason)


def _proof_message(by_initiator: bool, handshake_hash: bytes, static: bytes) -> bytes:
    return _PROOF_TAG + (b"initiator" if by_initiator else b"responder") + handshake_hash + static
