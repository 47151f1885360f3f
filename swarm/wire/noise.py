"""The Noise protocol framework, revision 34: handshakes over 25519 with ChaChaPoly, sans-IO. What is said after
a handshake may be under AESGCM, where its two sides agreed on that inside it.

A pattern is a table of tokens; the machine below walks it. BLAKE2s and SHA256 hash. What it knows nothing
of: identities, sockets, when a handshake may take place. http://www.noiseprotocol.org/noise.html
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import nacl.bindings as sodium

from swarm.errors import SwarmError
from swarm.wire import aead
from swarm.wire.keys import KEY_BYTES, KeyPair, exchange

MAX_MESSAGE = aead.MAX_MESSAGE
TAG_BYTES = aead.TAG_BYTES
_MAX_NONCE = 2**64 - 1


class NoiseError(SwarmError):
    """The handshake failed: {reason}."""


class Pattern(NamedTuple):
    """Keys known before (the responder's static only, in the patterns used here) and tokens a message."""

    knows_responder: bool
    messages: tuple[tuple[str, ...], ...]


PATTERNS = {
    "NK": Pattern(True, (("e", "es"), ("e", "ee"))),
    "XK": Pattern(True, (("e", "es"), ("e", "ee"), ("s", "se"))),
    "IK": Pattern(True, (("e", "es", "s", "ss"), ("e", "ee", "se"))),
    "XX": Pattern(False, (("e",), ("e", "ee", "s", "es"), ("s", "se"))),
}
_NAME = re.compile(r"Noise_([A-Z]{2})(?:psk([0-9]))?_25519_ChaChaPoly_(BLAKE2s|SHA256)")


def pattern_of(protocol_name: str) -> tuple[Pattern, str]:
    """The pattern (with its psk token in place) and the hash of a protocol name. ValueError: not known."""
    match = _NAME.fullmatch(protocol_name)
    if match is None or match[1] not in PATTERNS:
        raise ValueError(f"{protocol_name} is not a protocol of this software")
    pattern = PATTERNS[match[1]]
    if match[2] is not None:
        messages, place = list(pattern.messages), int(match[2])
        if place == 0:
            messages[0] = ("psk", *messages[0])
        else:
            messages[place - 1] = (*messages[place - 1], "psk")
        pattern = Pattern(pattern.knows_responder, tuple(messages))
    return pattern, match[3].lower()


@dataclass(frozen=True)
class DhKeys:
    """An X25519 key pair."""

    secret: bytes
    public: bytes

    @classmethod
    def of(cls, secret: bytes) -> "DhKeys":
        """The pair that belongs to a secret key."""
        return cls(secret, sodium.crypto_scalarmult_base(secret))

    @classmethod
    def of_identity(cls, keys: KeyPair) -> "DhKeys":
        """The pair of a peer's identity."""
        return cls(keys.exchange_secret, keys.static)


class Cipher:
    """One direction's key and counter (the CipherState of the specification)."""

    __slots__ = ("key", "nonce", "suite")

    def __init__(self, key: bytes, suite: aead.Suite = aead.CHACHA) -> None:
        self.key = key
        self.nonce = 0
        self.suite = suite

    def take(self, count: int = 1) -> int:
        """Reserves nonces for messages that are enciphered or deciphered later, in any order."""
        first = self.nonce
        self.nonce += count
        if self.nonce > _MAX_NONCE:
            raise NoiseError(reason="its counter is exhausted")
        return first

    def encrypt(self, plain: bytes | memoryview, associated: bytes = b"") -> bytes:
        """The next message, enciphered."""
        return aead.seal(self.key, self.suite.nonce(self.take()), plain, associated, self.suite)

    def record(self, parts: Sequence[bytes | bytearray | memoryview]) -> bytearray:
        """The next message, of these joined parts, as the record that travels."""
        return aead.seal_record(self.key, self.take(), parts, self.suite)

    def decrypt(self, sealed: bytes | memoryview, associated: bytes = b"") -> bytes:
        """The next message, deciphered. Raises Tampered, and then stays where it was."""
        plain = aead.open_sealed(self.key, self.suite.nonce(self.nonce), sealed, associated, self.suite)
        self.take()
        return plain


class _Symmetric:
    """The SymmetricState: chaining key, handshake hash, and the current cipher."""

    def __init__(self, protocol_name: str, hash_name: str) -> None:
        self.hash_name = hash_name
        name = protocol_name.encode("ascii")
        self.hash = name.ljust(32, b"\0") if len(name) <= 32 else self._digest(name)
        self.chain = self.hash
        self.cipher: Cipher | None = None

    def _digest(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def _expand(self, material: bytes, outputs: int) -> list[bytes]:
        secret = hmac.digest(self.chain, material, self.hash_name)
        found = [hmac.digest(secret, b"\x01", self.hash_name)]
        while len(found) < outputs:
            found.append(hmac.digest(secret, found[-1] + bytes([len(found) + 1]), self.hash_name))
        return found

    def mix_hash(self, data: bytes) -> None:
        self.hash = self._digest(self.hash + data)

    def mix_key(self, material: bytes) -> None:
        self.chain, key = self._expand(material, 2)
        self.cipher = Cipher(key)

    def mix_key_and_hash(self, material: bytes) -> None:
        self.chain, mixed, key = self._expand(material, 3)
        self.mix_hash(mixed)
        self.cipher = Cipher(key)

    def encrypt(self, plain: bytes) -> bytes:
        sealed = plain if self.cipher is None else self.cipher.encrypt(plain, self.hash)
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, sealed: bytes) -> bytes:
        plain = sealed if self.cipher is None else self.cipher.decrypt(sealed, self.hash)
        self.mix_hash(sealed)
        return plain

    def split(self, suite: aead.Suite) -> tuple[Cipher, Cipher]:
        first, second = self._expand(b"", 2)
        return Cipher(first, suite), Cipher(second, suite)


class Handshake:
    """One side of a handshake: write and read messages by turns until `finished`, then take the ciphers.

    ``static`` is this side's long-term pair, ``remote_static`` the responder's public key where the pattern
    knows it beforehand, ``psk`` 32 bytes where the pattern has one. ``ephemeral`` is for test vectors only.
    """

    def __init__(
        self,
        protocol_name: str,
        *,
        initiator: bool,
        prologue: bytes = b"",
        static: DhKeys | None = None,
        remote_static: bytes | None = None,
        psk: bytes | None = None,
        ephemeral: DhKeys | None = None,
    ) -> None:
        self._pattern, hash_name = pattern_of(protocol_name)
        self._symmetric = _Symmetric(protocol_name, hash_name)
        self._initiator = initiator
        self._static = static
        self._ephemeral = ephemeral
        self._remote_ephemeral: bytes | None = None
        self.remote_static = remote_static
        self._psk = psk
        self._has_psk = any("psk" in tokens for tokens in self._pattern.messages)
        if self._has_psk != (psk is not None) or (psk is not None and len(psk) != KEY_BYTES):
            raise ValueError(f"{protocol_name} {'needs' if self._has_psk else 'has no'} psk of 32 bytes")
        self._step = 0
        self.payload_hash = b""
        """The handshake hash just before the last payload, for proofs inside that payload."""
        self._symmetric.mix_hash(prologue)
        if self._pattern.knows_responder:
            known = remote_static if initiator else (static.public if static else None)
            if known is None:
                raise ValueError(f"{protocol_name} needs the responder's static key")
            self._symmetric.mix_hash(known)

    @property
    def finished(self) -> bool:
        """Whether all messages were exchanged."""
        return self._step == len(self._pattern.messages)

    @property
    def on_last_message(self) -> bool:
        """Whether one message is left to be exchanged."""
        return self._step == len(self._pattern.messages) - 1

    @property
    def my_turn(self) -> bool:
        """Whether the next message is this side's to write."""
        return not self.finished and (self._step % 2 == 0) == self._initiator

    @property
    def hash(self) -> bytes:
        """The handshake hash: once finished, a name of this session that both sides share."""
        return self._symmetric.hash

    def write(self, payload: bytes | Callable[[bytes], bytes] = b"") -> bytes:
        """The next message. A callable payload is given the handshake hash that it will be bound to."""
        if not self.my_turn:
            raise NoiseError(reason="it is not this side's turn to write")
        out = b"".join(self._write_token(token) for token in self._pattern.messages[self._step])
        self.payload_hash = self._symmetric.hash
        out += self._symmetric.encrypt(payload(self.payload_hash) if callable(payload) else payload)
        self._step += 1
        if len(out) > MAX_MESSAGE:
            raise NoiseError(reason="a message is too long")
        return out

    def read(self, message: bytes) -> bytes:
        """The payload of the other side's next message. Raises NoiseError, Tampered, BadKey."""
        if self.finished or self.my_turn:
            raise NoiseError(reason="it is not the other side's turn to write")
        if len(message) > MAX_MESSAGE:
            raise NoiseError(reason="a message is too long")
        for token in self._pattern.messages[self._step]:
            message = self._read_token(token, message)
        self.payload_hash = self._symmetric.hash
        payload = self._symmetric.decrypt(message)
        self._step += 1
        return payload

    def split(self, suite: aead.Suite = aead.CHACHA) -> tuple[Cipher, Cipher]:
        """The ciphers to send and to receive with."""
        if not self.finished:
            raise NoiseError(reason="it is not finished")
        first, second = self._symmetric.split(suite)
        return (first, second) if self._initiator else (second, first)

    def _write_token(self, token: str) -> bytes:
        symmetric = self._symmetric
        if token == "e":
            if self._ephemeral is None:
                self._ephemeral = DhKeys.of_identity(KeyPair.generate())
            symmetric.mix_hash(self._ephemeral.public)
            if self._has_psk:
                symmetric.mix_key(self._ephemeral.public)
            return self._ephemeral.public
        if token == "s":
            return symmetric.encrypt(self._own_static().public)
        self._mix(token)
        return b""

    def _read_token(self, token: str, message: bytes) -> bytes:
        symmetric = self._symmetric
        if token == "e":
            self._remote_ephemeral, rest = _cut(message, KEY_BYTES)
            symmetric.mix_hash(self._remote_ephemeral)
            if self._has_psk:
                symmetric.mix_key(self._remote_ephemeral)
            return rest
        if token == "s":
            part, rest = _cut(message, KEY_BYTES + (TAG_BYTES if symmetric.cipher else 0))
            self.remote_static = symmetric.decrypt(part)
            return rest
        self._mix(token)
        return message

    def _mix(self, token: str) -> None:
        if token == "psk":
            assert self._psk is not None
            self._symmetric.mix_key_and_hash(self._psk)
            return
        ours, theirs = (token[0], token[1]) if self._initiator else (token[1], token[0])
        pair = self._ephemeral if ours == "e" else self._own_static()
        public = self._remote_ephemeral if theirs == "e" else self.remote_static
        assert pair is not None
        assert public is not None
        self._symmetric.mix_key(exchange(pair.secret, public))

    def _own_static(self) -> DhKeys:
        if self._static is None:
            raise ValueError("this pattern needs a static key")
        return self._static


def _cut(message: bytes, length: int) -> tuple[bytes, bytes]:
    if len(message) < length:
        raise NoiseError(reason="a message is too short")
    return message[:length], message[length:]
