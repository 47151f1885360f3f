"""Keys and ciphers against the Wycheproof vectors, and what our wrappers refuse beyond them."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from swarm.wire import aead
from swarm.wire.keys import BadKey, BadSignature, KeyPair, exchange, static_of, verify


def groups(vectors: Path, name: str) -> list[dict[str, Any]]:
    return list(json.loads((vectors / f"wycheproof_{name}.json").read_text())["testGroups"])


def test_ed25519_vectors(vectors: Path) -> None:
    seen = 0
    for group in groups(vectors, "ed25519"):
        key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            seen += 1
            message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
            if case["result"] == "valid":
                verify(key, message, signature)
            else:
                with pytest.raises(BadSignature):
                    verify(key, message, signature)
    assert seen > 100


def test_x25519_vectors(vectors: Path) -> None:
    refused = 0
    for group in groups(vectors, "x25519"):
        for case in group["tests"]:
            secret, public = bytes.fromhex(case["private"]), bytes.fromhex(case["public"])
            if "ZeroSharedSecret" in case["flags"]:
                refused += 1
                with pytest.raises(BadKey):
                    exchange(secret, public)
            else:
                assert exchange(secret, public).hex() == case["shared"], case["tcId"]
    assert refused > 20


def test_chacha20_poly1305_vectors(vectors: Path) -> None:
    seen = 0
    for group in groups(vectors, "chacha20_poly1305"):
        for case in group["tests"]:
            key, iv, aad, msg, ct, tag = (
                bytes.fromhex(case[name]) for name in ("key", "iv", "aad", "msg", "ct", "tag")
            )
            seen += 1
            if len(iv) != aead.NONCE_BYTES:
                with pytest.raises(ValueError, match="nonce"):
                    aead.seal(key, iv, msg, aad)
            elif case["result"] == "valid":
                assert aead.seal(key, iv, msg, aad) == ct + tag
                assert aead.open_sealed(key, iv, ct + tag, aad) == msg
            else:
                with pytest.raises(aead.Tampered):
                    aead.open_sealed(key, iv, ct + tag, aad)
    assert seen > 300


def test_an_identity_has_one_secret_and_two_keys() -> None:
    keys = KeyPair(bytes(range(32)))
    assert static_of(keys.key) == keys.static
    assert exchange(keys.exchange_secret, KeyPair(b"\x07" * 32).static) == exchange(
        KeyPair(b"\x07" * 32).exchange_secret, keys.static
    )
    assert keys.seed.hex() not in repr(keys)
    verify(keys.key, b"message", keys.sign(b"message"))


def test_bad_keys_are_refused() -> None:
    keys = KeyPair.generate()
    signature = keys.sign(b"m")
    for wrong in (keys.key[:31], bytes(32), b"\xff" * 32, KeyPair.generate().key):
        with pytest.raises(BadSignature):
            verify(wrong, b"m", signature)
    with pytest.raises(BadKey):
        KeyPair(b"short")
    with pytest.raises(BadKey):
        exchange(keys.exchange_secret, b"short")
    for not_a_point in (bytes(32), b"\x01" + bytes(31), b"short"):
        with pytest.raises(BadKey):
            static_of(not_a_point)


@pytest.mark.parametrize("size", [0, 1, aead.MAX_PLAIN - 1, aead.MAX_PLAIN, aead.MAX_PLAIN + 1, 200_000])
def test_runs_of_records(size: int) -> None:
    key, plain = bytes(range(32)), bytes(i * 7 & 255 for i in range(size))
    sealed = aead.seal_records(key, 5, plain)
    assert len(sealed) == aead.sealed_length(size)
    assert bytes(aead.open_records(key, 5, sealed, size)) == plain
    if size:
        for place in {0, 1, 2, len(sealed) // 2, len(sealed) - 1}:
            bad = bytearray(sealed)
            bad[place] ^= 1
            with pytest.raises(aead.Tampered):
                aead.open_records(key, 5, memoryview(bad), size)
        with pytest.raises(aead.Tampered):
            aead.open_records(key, 6, sealed, size)
    with pytest.raises(aead.Tampered):
        aead.open_records(key, 5, sealed, size + 1)


def test_one_record() -> None:
    key = bytes(range(32))
    assert aead.seal_record(key, 9, [b"one ", memoryview(b"two")]) == bytes(
        aead.seal_records(key, 9, b"one two")
    )
    with pytest.raises(ValueError, match="do not fit"):
        aead.seal_record(key, 0, [bytes(aead.MAX_PLAIN + 1)])


def test_failed_openings_leave_nothing_that_the_collector_trips_over() -> None:
    """A pointer into a view that is kept by a traceback's cycle once crashed the interpreter."""
    kept: list[object] = []
    for _ in range(50):
        try:
            aead.open_records(bytes(32), 0, memoryview(bytearray(aead.sealed_length(1000))), 1000)
        except aead.Tampered as error:
            cycle: list[object] = [error]
            cycle.append(cycle)
            kept.append(len(cycle))
    gc.collect()
    assert len(kept) == 50
