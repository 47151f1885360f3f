"""How peers come to trust a connection: identities, tokens, pins, versions, and who is told what."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import SwarmError
from swarm.wire import aead
from swarm.wire.aead import LENGTH_BYTES
from swarm.wire.handshake import (
    MAGIC,
    PREFACE_BYTES,
    VERSION,
    Greeter,
    HandshakeFailed,
    KeyChanged,
    Mode,
    OtherVersion,
    Refusal,
    TokenNeeded,
    TokenNotUsed,
    TurnedAway,
    UnknownStatic,
    WrongToken,
    refusal_error,
    refusal_record,
)
from swarm.wire.keys import BadKey, KeyPair
from tests.wire.support import CALLER, SERVER, STRANGER, TOKEN


def shake(caller: Greeter, server: Greeter, change: Any = None) -> None:
    """Carries the messages of a handshake; ``change`` may alter each of them (number, bytes)."""
    sent, number = caller.start(), 0
    reader, writer = server, caller
    server.read_preface(sent[:PREFACE_BYTES])
    sent = sent[PREFACE_BYTES:]
    while sent:
        message = sent[LENGTH_BYTES:]
        if change is not None:
            message = change(number, message)
        sent = reader.read(message)
        reader, writer, number = writer, reader, number + 1


@pytest.mark.skipif(aead.AESGCM is None, reason="this processor has no instructions for AES-GCM")
@pytest.mark.parametrize("expected", [None, SERVER.key])
def test_aes_is_used_when_both_sides_want_it(expected: Any) -> None:
    for wished in itertools.product((aead.CHACHA, aead.AESGCM), repeat=2):
        caller = Greeter(CALLER, initiator=True, expected_key=expected, suite=wished[0])
        server = Greeter(SERVER, initiator=False, suite=wished[1])
        shake(caller, server)
        assert caller.session is not None
        assert server.session is not None
        agreed = aead.AESGCM if wished == (aead.AESGCM, aead.AESGCM) else aead.CHACHA
        for session in (caller.session, server.session):
            assert session.sends.suite is session.receives.suite is agreed
        there = server.session.receives.decrypt(caller.session.sends.encrypt(b"there"))
        assert there == b"there"


def greeters(
    psk: bytes | None = None, server_psk: bytes | None = None, server_keys: KeyPair = SERVER, **options: Any
) -> tuple[Greeter, Greeter]:
    caller = Greeter(CALLER, initiator=True, psk=psk, peer="the server", **options)
    return caller, Greeter(server_keys, initiator=False, psk=server_psk, peer="the caller")


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("expected", [None, SERVER.key])
@pytest.mark.parametrize("pinned", [True, False])
def test_both_sides_learn_who_the_other_is(token: Any, expected: Any, pinned: bool) -> None:
    caller, server = greeters(token, token, expected_key=expected, pinned=pinned)
    shake(caller, server)
    assert caller.session is not None
    assert server.session is not None
    assert (caller.session.key, server.session.key) == (SERVER.key, CALLER.key)
    assert caller.session.hash == server.session.hash
    in_ik = expected is not None and pinned
    assert caller.session.mode is server.session.mode is Mode(int(in_ik) + (2 if token else 0))
    assert caller.session.confirms is in_ik
    assert server.session.confirms is not in_ik
    there = server.session.receives.decrypt(caller.session.sends.encrypt(b"there"))
    back = caller.session.receives.decrypt(server.session.sends.encrypt(b"back"))
    assert (there, back) == (b"there", b"back")


def test_nothing_tells_who_calls_before_the_server_is_known() -> None:
    caller, server = greeters()
    first = caller.start()
    assert bytes(CALLER.key) not in first
    assert CALLER.static not in first
    server.read_preface(first[:PREFACE_BYTES])
    reply = server.read(first[PREFACE_BYTES + LENGTH_BYTES :])
    assert bytes(SERVER.key) not in reply
    assert SERVER.static not in reply
    last = caller.read(reply[LENGTH_BYTES:])
    assert bytes(CALLER.key) not in last
    assert CALLER.static not in last


def test_a_wrong_token_is_noticed_by_the_server_and_said() -> None:
    caller, server = greeters(TOKEN, b"w" * 32)
    with pytest.raises(WrongToken, match="the caller has another token"):
        shake(caller, server)
    assert server.refusal is Refusal.WRONG_TOKEN
    assert server.session is None


def test_a_wrong_token_is_noticed_by_a_pinned_caller_and_said() -> None:
    caller, server = greeters(TOKEN, b"w" * 32, expected_key=SERVER.key)
    with pytest.raises(WrongToken, match="the server has another token"):
        shake(caller, server)
    assert caller.refusal is Refusal.WRONG_TOKEN
    assert caller.session is None


def test_a_token_where_none_is_needed_and_none_where_one_is() -> None:
    caller, server = greeters(TOKEN, None)
    with pytest.raises(TokenNotUsed, match="open swarm"):
        shake(caller, server)
    assert server.refusal is Refusal.TOKEN_NOT_USED
    caller, server = greeters(None, TOKEN)
    with pytest.raises(TokenNeeded, match="private swarm"):
        shake(caller, server)
    assert server.refusal is Refusal.TOKEN_NEEDED


def test_another_key_than_expected_is_refused() -> None:
    caller, server = greeters(server_keys=STRANGER, expected_key=SERVER.key)
    with pytest.raises(HandshakeFailed, match="not ours"):
        shake(caller, server)
    assert server.refusal is Refusal.UNKNOWN_STATIC

    caller, server = greeters(server_keys=STRANGER, expected_key=SERVER.key, pinned=False)
    with pytest.raises(KeyChanged) as caught:
        shake(caller, server)
    assert STRANGER.key.hex()[:16] in str(caught.value)
    assert SERVER.key.hex()[:16] in str(caught.value)


def test_the_mode_cannot_be_changed_on_the_way() -> None:
    for token, expected, mode in (
        (None, None, 1),
        (None, SERVER.key, 0),
        (TOKEN, None, 3),
        (TOKEN, SERVER.key, 2),
    ):
        caller, server = greeters(token, token, expected_key=expected)
        first = bytearray(caller.start())
        first[PREFACE_BYTES - 1] = mode
        server.read_preface(bytes(first[:PREFACE_BYTES]))
        with pytest.raises(SwarmError):
            caller.read(server.read(bytes(first[PREFACE_BYTES + LENGTH_BYTES :]))[LENGTH_BYTES:])
        assert caller.session is None


def test_no_token_cannot_pass_for_a_token() -> None:
    caller, server = greeters(TOKEN, TOKEN)
    first = bytearray(caller.start())
    first[PREFACE_BYTES - 1] = Mode.XX
    with pytest.raises(TokenNeeded):
        server.read_preface(bytes(first[:PREFACE_BYTES]))


@pytest.mark.parametrize("expected", [None, SERVER.key])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_each_changed_message_is_refused(token: Any, expected: Any) -> None:
    messages = 2 if expected else 3
    for number in range(messages):
        for place in (0, 31, 33, 60, -1):

            def change(at: int, message: bytes, number: int = number, place: int = place) -> bytes:
                if at != number or place >= len(message):
                    return message
                changed = bytearray(message)
                changed[place] ^= 0x40
                return bytes(changed)

            caller, server = greeters(token, token, expected_key=expected)
            if number == 0 and expected is None and place > 31:
                continue  # the first message of an XX is a public key and nothing else
            with pytest.raises(SwarmError):
                shake(caller, server, change)


def test_an_identity_that_is_not_proven_is_refused() -> None:
    class Liar(Greeter):
        def _proof(self, handshake_hash: bytes) -> bytes:
            return SERVER.key + super()._proof(handshake_hash)[32:]

    caller, _ = greeters()
    with pytest.raises(HandshakeFailed, match="prove its identity"):
        shake(caller, Liar(STRANGER, initiator=False))
    assert caller.refusal is Refusal.IDENTITY

    class Mute(Greeter):
        def _proof(self, handshake_hash: bytes) -> bytes:
            return b""

    caller, _ = greeters()
    with pytest.raises(HandshakeFailed, match="did not prove an identity"):
        shake(caller, Mute(SERVER, initiator=False))


def test_a_proof_from_another_handshake_is_refused() -> None:
    proofs: list[bytes] = []

    class Recorder(Greeter):
        def _proof(self, handshake_hash: bytes) -> bytes:
            proofs.append(super()._proof(handshake_hash))
            return proofs[-1]

    class Replayer(Greeter):
        def _proof(self, handshake_hash: bytes) -> bytes:
            return proofs[0]

    caller, _ = greeters()
    shake(caller, Recorder(SERVER, initiator=False))
    caller, _ = greeters()
    with pytest.raises(HandshakeFailed, match="prove its identity"):
        shake(caller, Replayer(SERVER, initiator=False))


def test_a_replayed_first_message_leads_to_no_session_that_can_be_used() -> None:
    caller, server = greeters(expected_key=SERVER.key)
    first = caller.start()
    server.read_preface(first[:PREFACE_BYTES])
    server.read(first[PREFACE_BYTES + LENGTH_BYTES :])
    _, again = greeters()
    again.read_preface(first[:PREFACE_BYTES])
    again.read(first[PREFACE_BYTES + LENGTH_BYTES :])
    assert again.session is not None
    assert not again.session.confirms  # so the other side must, and a replayer cannot


def test_prefaces() -> None:
    for preface, error in (
        (b"GET / ", HandshakeFailed),
        (MAGIC + bytes([VERSION + 1, 0]), OtherVersion),
        (MAGIC + bytes([VERSION, 9]), HandshakeFailed),
    ):
        _, server = greeters()
        with pytest.raises(error):
            server.read_preface(preface)
        assert server.refusal is not None
        with pytest.raises(HandshakeFailed):
            server.read(bytes(32))


def test_an_impossible_expected_key_is_an_error_before_anything_is_sent() -> None:
    caller, _ = greeters(expected_key=bytes(32))
    with pytest.raises(BadKey):
        caller.start()


def test_refusals_are_told_and_understood() -> None:
    expected = {
        Refusal.VERSION: OtherVersion,
        Refusal.TOKEN_NEEDED: TokenNeeded,
        Refusal.TOKEN_NOT_USED: TokenNotUsed,
        Refusal.WRONG_TOKEN: WrongToken,
        Refusal.UNKNOWN_STATIC: UnknownStatic,
    }
    for refusal in Refusal:
        body = refusal_record(refusal)
        assert int.from_bytes(body[:LENGTH_BYTES], "big") == len(body) - LENGTH_BYTES
        error = refusal_error(body[LENGTH_BYTES:], "the server")
        assert type(error) is expected.get(refusal, TurnedAway)
        assert "the server" in str(error)
    for strange in (b"", b"\x00", b"\xff\x01", b"\x01", b"toolong"):
        assert isinstance(refusal_error(strange, "the server"), HandshakeFailed)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.sampled_from(list(Mode)))
def test_random_messages_give_named_errors_only(message: bytes, mode: Mode) -> None:
    server = Greeter(SERVER, initiator=False, psk=TOKEN if mode.has_psk else None)
    server.read_preface(MAGIC + bytes([VERSION, mode]))
    try:
        server.read(message)
    except SwarmError:
        assert server.session is None
    caller = Greeter(CALLER, initiator=True, expected_key=SERVER.key if mode.is_pinned else None)
    caller.start()
    with pytest.raises(SwarmError):
        caller.read(message)
