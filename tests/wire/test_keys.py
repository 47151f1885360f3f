"""Keys and ciphers against the Wycheproof vectors, and what our wrappers refuse beyond them."""

import gc
import json
from dataclasses import replace
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


SUITES = [aead.CHACHA] if aead.AESGCM is None else [aead.CHACHA, aead.AESGCM]
GCM_KEY = "feffe9928665731c6d6a8f9467308308" * 2
GCM_PLAIN = (
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
)
GCM_SEALED = (
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    "76fc6ece0f4e1768cddf8853bb2d551b"
)


@pytest.mark.skipif(aead.AESGCM is None, reason="this processor has no instructions for AES-GCM")
@pytest.mark.parametrize(
    ("key", "nonce", "associated", "plain", "sealed"),
    [
        ("00" * 32, "00" * 12, "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
        (
            "00" * 32,
            "00" * 12,
            "",
            "00" * 16,
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        ),
        (
            GCM_KEY,
            "cafebabefacedbaddecaf888",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            GCM_PLAIN,
            GCM_SEALED,
        ),
    ],
)
def test_aes_gcm_vectors_of_its_specification(
    key: str, nonce: str, associated: str, plain: str, sealed: str
) -> None:
    """Cases 13, 14 and 16 of McGrew and Viega."""
    assert aead.AESGCM is not None
    given = [bytes.fromhex(part) for part in (key, nonce, plain, associated)]
    found = aead.seal(*given, suite=aead.AESGCM)
    assert found.hex() == sealed
    given[2] = found
    assert aead.open_sealed(*given, suite=aead.AESGCM).hex() == plain
    given[2] = bytes([found[0] ^ 1]) + found[1:]
    with pytest.raises(aead.Tampered):
        aead.open_sealed(*given, suite=aead.AESGCM)


def test_nonces_of_noise() -> None:
    assert aead.CHACHA.nonce(0x0102) == bytes([0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0])
    if aead.AESGCM is not None:
        assert aead.AESGCM.nonce(0x0102) == bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2])
    assert aead.preferred() in SUITES


def test_the_faster_suite_is_found_whatever_sleeps_at_first() -> None:
    quick, slow = replace(aead.CHACHA, name="quick"), replace(aead.CHACHA, name="slow")
    made = 0

    def trial_s(suite: aead.Suite) -> float:
        nonlocal made
        made += 1
        return (1.0 if suite is quick else 3.0) * (5.0 if made <= 8 else 1.0)

    for suites in ((quick, slow), (slow, quick)):
        made = 0
        assert aead.fastest(suites, trial_s) is quick


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
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_runs_of_records(size: int, suite: aead.Suite) -> None:
    key, plain = bytes(range(32)), bytes(i * 7 & 255 for i in range(size))
    sealed = aead.seal_records(key, 5, plain, suite)
    assert len(sealed) == aead.sealed_length(size)
    assert bytes(aead.open_records(key, 5, sealed, size, suite)) == plain
    if size:
        for place in {0, 1, 2, len(sealed) // 2, len(sealed) - 1}:
            bad = bytearray(sealed)
            bad[place] ^= 1
            with pytest.raises(aead.Tampered):
                aead.open_records(key, 5, memoryview(bad), size, suite)
        with pytest.raises(aead.Tampered):
            aead.open_records(key, 6, sealed, size, suite)
    with pytest.raises(aead.Tampered):
        aead.open_records(key, 5, sealed, size + 1, suite)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_one_record(suite: aead.Suite) -> None:
    key = bytes(range(32))
    assert aead.seal_record(key, 9, [b"one ", memoryview(b"two")], suite) == bytes(
        aead.seal_records(key, 9, b"one two", suite)
    )
    with pytest.raises(ValueError, match="do not fit"):
        aead.seal_record(key, 0, [bytes(aead.MAX_PLAIN + 1)], suite)


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
