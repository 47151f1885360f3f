"""ChaCha20-Poly1305 (RFC 8439) and AES-256-GCM over caller's buffers, and whole runs of Noise records in one
go.

libsodium does the work and the interpreter's lock is free meanwhile, so long payloads are enciphered in
worker threads at full speed. The high-level bindings copy each message twice; here the output goes where it
is needed. A record is what travels: two bytes of length, then a Noise message of at most 65535 bytes.

Every machine has ChaCha20-Poly1305. AES-256-GCM is there only in hardware, and then mostly three times as
fast: `preferred` measures it once.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import nacl.bindings  # noqa: F401  # chooses the code for this processor; without it libsodium runs at a third
import numpy as np
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # compiled, without stubs

from swarm.errors import SwarmError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
LENGTH_BYTES = 2
MAX_MESSAGE = 65535
MAX_PLAIN = MAX_MESSAGE - TAG_BYTES
"""The most plain bytes of one record."""
RECORD_OVERHEAD = LENGTH_BYTES + TAG_BYTES
_NULL = ffi.NULL
_TRIAL_BYTES = 64 << 10
_TRIALS = 12


@dataclass(frozen=True, slots=True)
class Suite:
    """A cipher with a key of 32 bytes, a nonce of 12 and a tag of 16: one of Noise's."""

    name: str
    """As in Noise's protocol names."""
    encrypt: Any
    decrypt: Any
    order: Literal["little", "big"]

    def nonce(self, counter: int) -> bytes:
        """The nonce of a Noise message: four zero bytes, then its number in 64 bits."""
        return b"\0\0\0\0" + counter.to_bytes(8, self.order)


CHACHA = Suite(
    "ChaChaPoly",
    lib.crypto_aead_chacha20poly1305_ietf_encrypt,
    lib.crypto_aead_chacha20poly1305_ietf_decrypt,
    "little",
)


def _aes() -> Suite | None:
    """None where the processor has no instructions for it, or the bindings are too old to offer it."""
    try:
        available = lib.crypto_aead_aes256gcm_is_available()
        found = Suite("AESGCM", lib.crypto_aead_aes256gcm_encrypt, lib.crypto_aead_aes256gcm_decrypt, "big")
    except AttributeError:
        return None
    return found if available else None


AESGCM = _aes()


class Tampered(SwarmError):
    """A message did not decipher: it was changed on its way, or was made with another key."""


@cache
def preferred() -> Suite:
    """The suite that is faster on this machine, measured when it is first asked for (within two milliseconds)."""
    return CHACHA if AESGCM is None else fastest((AESGCM, CHACHA), _trial_s)


def fastest(suites: Sequence[Suite], trial_s: Callable[[Suite], float]) -> Suite:
    """That of the shortest trial. They take turns, so that a processor that wakes or is taken away slows all."""
    best_s = dict.fromkeys(suites, math.inf)
    for _ in range(_TRIALS):
        for suite in suites:
            best_s[suite] = min(best_s[suite], trial_s(suite))
    return min(suites, key=best_s.__getitem__)


def _trial_s(suite: Suite) -> float:
    plain = bytes(_TRIAL_BYTES)
    began = time.perf_counter()
    seal_records(bytes(KEY_BYTES), 0, plain, suite)
    return time.perf_counter() - began


def seal(
    key: bytes, nonce: bytes, plain: bytes | memoryview, associated: bytes = b"", suite: Suite = CHACHA
) -> bytes:
    """Enciphers one message under a 12-byte nonce: as many bytes as ``plain``, and a 16-byte tag."""
    _check_sizes(key, nonce)
    out = bytearray(len(plain) + TAG_BYTES)
    suite.encrypt(
        ffi.from_buffer("unsigned char[]", out), _NULL, ffi.from_buffer(plain), len(plain),
        associated, len(associated), _NULL, nonce, key,
    )  # fmt: skip
    return bytes(out)


def open_sealed(
    key: bytes, nonce: bytes, sealed: bytes | memoryview, associated: bytes = b"", suite: Suite = CHACHA
) -> bytes:
    """Deciphers one message. Raises Tampered."""
    _check_sizes(key, nonce)
    if len(sealed) < TAG_BYTES:
        raise Tampered()
    out = bytearray(len(sealed) - TAG_BYTES)
    failed = suite.decrypt(
        ffi.from_buffer("unsigned char[]", out), _NULL, _NULL, ffi.from_buffer(sealed), len(sealed),
        associated, len(associated), nonce, key,
    )  # fmt: skip
    if failed:
        raise Tampered()
    return bytes(out)


def seal_record(
    key: bytes, counter: int, parts: Sequence[bytes | bytearray | memoryview], suite: Suite = CHACHA
) -> bytearray:
    """One whole record of the joined parts, enciphered where it stands."""
    plain = b"".join(parts)
    length = len(plain)
    if length > MAX_PLAIN:
        raise ValueError(f"{length} bytes do not fit one record")
    out = bytearray(length + RECORD_OVERHEAD)
    out[:LENGTH_BYTES] = (length + TAG_BYTES).to_bytes(LENGTH_BYTES, "big")
    target = ffi.from_buffer("unsigned char[]", out) + LENGTH_BYTES
    suite.encrypt(target, _NULL, plain, length, _NULL, 0, _NULL, suite.nonce(counter), key)
    return out


def record_count(plain_bytes: int) -> int:
    """How many records carry that many plain bytes."""
    return -(-plain_bytes // MAX_PLAIN)


def sealed_length(plain_bytes: int) -> int:
    """How many bytes these records take on the wire."""
    return plain_bytes + record_count(plain_bytes) * RECORD_OVERHEAD


def seal_records(
    key: bytes, counter: int, plain: bytes | bytearray | memoryview, suite: Suite = CHACHA
) -> memoryview:
    """Enciphers a payload into consecutive records whose nonces count up from ``counter``."""
    size = len(plain)
    out = uninitialised(sealed_length(size))
    with _pointer(plain) as source, _pointer(out) as target:
        start = place = 0
        while start < size:
            length = min(size - start, MAX_PLAIN)
            out[place : place + LENGTH_BYTES] = (length + TAG_BYTES).to_bytes(LENGTH_BYTES, "big")
            place += LENGTH_BYTES
            nonce = suite.nonce(counter)
            suite.encrypt(target + place, _NULL, source + start, length, _NULL, 0, _NULL, nonce, key)
            counter, start, place = counter + 1, start + length, place + length + TAG_BYTES
    return out


def open_records(
    key: bytes, counter: int, sealed: memoryview, size: int, suite: Suite = CHACHA
) -> memoryview:
    """The payload of ``size`` bytes that `seal_records` made ``sealed`` of. Raises Tampered."""
    if len(sealed) != sealed_length(size):
        raise Tampered()
    out = uninitialised(size)
    with _pointer(sealed) as source, _pointer(out) as target:
        start = place = 0
        while start < size:
            length = min(size - start, MAX_PLAIN)
            message = length + TAG_BYTES
            if int.from_bytes(sealed[place : place + LENGTH_BYTES], "big") != message:
                raise Tampered()
            place += LENGTH_BYTES
            nonce = suite.nonce(counter)
            if suite.decrypt(target + start, _NULL, _NULL, source + place, message, _NULL, 0, nonce, key):
                raise Tampered()
            counter, start, place = counter + 1, start + length, place + message
    return out


def uninitialised(size: int) -> memoryview:
    """Memory that is about to be filled: unlike a bytearray it is not cleared first."""
    return np.empty(size, dtype=np.uint8).data


def _pointer(view: bytes | bytearray | memoryview) -> Any:
    """A pointer to a buffer, to be used in a with statement.

    Released at its end, not by chance: when a pointer into a memoryview becomes part of a reference cycle (a
    traceback is enough), CPython's collector clears the view before the pointer and crashes.
    """
    return ffi.from_buffer("unsigned char[]", view)


def _check_sizes(key: bytes, nonce: bytes) -> None:
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise ValueError(f"a key of {KEY_BYTES} and a nonce of {NONCE_BYTES} bytes are needed")
