"""Noise handshakes against published vectors, and what they do with changed or misplaced messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.wire.aead import Tampered
from swarm.wire.keys import BadKey
from swarm.wire.noise import DhKeys, Handshake, NoiseError, pattern_of

XX = "Noise_XX_25519_ChaChaPoly_BLAKE2s"
XX_PSK = "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2s"


def published(vectors: Path) -> list[dict[str, Any]]:
    found = json.loads((vectors / "noise_25519_chachapoly.json").read_text())["vectors"]
    assert len(found) == 14
    return list(found)


def side(vector: dict[str, Any], role: str) -> Handshake:
    def key(name: str) -> bytes | None:
        return bytes.fromhex(vector[f"{role}_{name}"]) if f"{role}_{name}" in vector else None

    static, psks = key("static"), vector.get(f"{role}_psks")
    return Handshake(
        vector["protocol_name"],
        initiator=role == "init",
        prologue=bytes.fromhex(vector[f"{role}_prologue"]),
        static=DhKeys.of(static) if static else None,
        remote_static=key("remote_static"),
        psk=bytes.fromhex(psks[0]) if psks else None,
        ephemeral=DhKeys.of(key("ephemeral") or b""),
    )


def test_every_published_vector(vectors: Path) -> None:
    for vector in published(vectors):
        writer, reader = side(vector, "init"), side(vector, "resp")
        initiator, messages = writer, list(vector["messages"])
        while not writer.finished:
            message = messages.pop(0)
            written = writer.write(bytes.fromhex(message["payload"]))
            assert written.hex() == message["ciphertext"], vector["protocol_name"]
            assert reader.read(written).hex() == message["payload"]
            writer, reader = reader, writer
        assert writer.hash == reader.hash == bytes.fromhex(vector["handshake_hash"])
        responder = reader if writer is initiator else writer
        sends = {id(initiator): initiator.split(), id(responder): responder.split()}
        assert messages
        for message in messages:
            written = sends[id(writer)][0].encrypt(bytes.fromhex(message["payload"]))
            assert written.hex() == message["ciphertext"], vector["protocol_name"]
            assert sends[id(reader)][1].decrypt(written).hex() == message["payload"]
            writer, reader = reader, writer


def pair(protocol: str = XX, **other: Any) -> tuple[Handshake, Handshake]:
    initiator = Handshake(protocol, initiator=True, static=DhKeys.of(b"\x11" * 32), **other)
    return initiator, Handshake(protocol, initiator=False, static=DhKeys.of(b"\x22" * 32), **other)


def test_each_changed_byte_of_a_handshake_is_noticed() -> None:
    initiator, responder = pair()
    responder.read(initiator.write())
    good = responder.write(b"hello")
    for place in range(len(good)):
        victim, other = pair()
        other.read(victim.write())
        bad = bytearray(other.write(b"hello"))
        bad[place] ^= 0x80  # also the top bit of the public key, which X25519 itself would not see
        with pytest.raises((Tampered, BadKey)):
            victim.read(bytes(bad))


@pytest.mark.parametrize("length", range(0, 32))
def test_short_messages_are_refused(length: int) -> None:
    _, responder = pair()
    with pytest.raises(NoiseError):
        responder.read(bytes(length))


def test_turns_are_kept() -> None:
    initiator, responder = pair()
    with pytest.raises(NoiseError):
        responder.write()
    with pytest.raises(NoiseError):
        initiator.read(b"x" * 64)
    with pytest.raises(NoiseError):
        initiator.split()


def test_low_order_ephemeral_is_refused() -> None:
    initiator, responder = pair()
    responder.read(initiator.write())
    with pytest.raises(BadKey):
        initiator.read(bytes(32) + responder.write()[32:])


def test_another_prologue_or_psk_does_not_get_through() -> None:
    initiator, _ = pair(prologue=b"version 1")
    _, responder = pair(prologue=b"version 2")
    responder.read(initiator.write())
    with pytest.raises(Tampered):
        initiator.read(responder.write())

    initiator, _ = pair(XX_PSK, psk=b"a" * 32)
    _, responder = pair(XX_PSK, psk=b"b" * 32)
    responder.read(initiator.write())
    initiator.read(responder.write())
    with pytest.raises(Tampered):
        responder.read(initiator.write())


def test_unknown_protocols_and_missing_keys_are_errors_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not a protocol"):
        pattern_of("Noise_QQ_25519_ChaChaPoly_BLAKE2s")
    with pytest.raises(ValueError, match="psk"):
        Handshake(XX_PSK, initiator=True, static=DhKeys.of(b"\x11" * 32))
    with pytest.raises(ValueError, match="static"):
        Handshake("Noise_IK_25519_ChaChaPoly_BLAKE2s", initiator=True, static=DhKeys.of(b"\x11" * 32))
