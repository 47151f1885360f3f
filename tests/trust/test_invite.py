"""Invites and tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import SwarmError
from swarm.trust.invite import (
    BadInvite,
    BadToken,
    Invite,
    is_invite,
    new_token,
    parse_invite,
    token_from_text,
)
from swarm.wire.address import Address, BadAddress
from swarm.wire.keys import KeyPair

KEY, TRACKER = KeyPair(b"\x01" * 32).key, KeyPair(b"\x02" * 32).key
FULL = Invite(Address("example.org", 7300), KEY, TRACKER, b"t" * 32)


@pytest.mark.parametrize(
    "invite",
    [
        FULL,
        Invite(Address("127.0.0.1", 1), KEY),
        Invite(Address("::1", 65535), None, TRACKER),
        Invite(Address("fe80::1%eth0", 5), None, None, b"\xff" * 32),
        Invite(Address("host", 7300)),
    ],
)
def test_there_and_back(invite: Invite) -> None:
    text = str(invite)
    assert text.startswith("swarm://")
    assert text.isascii()
    assert not set(text) & set(" '\"$&|;<>()*?!`\\")
    assert parse_invite(text) == parse_invite(f"  {text}\n") == parse_invite(text + "/") == invite
    assert is_invite(text)


def test_the_token_shows_only_in_the_invite_itself() -> None:
    secret = str(FULL).split(".")[-2]
    assert secret not in repr(FULL)
    assert repr(b"t" * 32) not in repr(FULL)
    damaged = str(FULL)[:-1]
    with pytest.raises(BadInvite) as caught:
        parse_invite(damaged)
    assert secret not in str(caught.value)


def test_every_changed_character_and_every_cut_is_noticed() -> None:
    text = str(FULL)
    for place in range(len("swarm://"), len(text)):
        other = "A" if text[place] not in "aA" else "B"
        with pytest.raises((BadInvite, BadAddress)):
            parse_invite(text[:place] + other + text[place + 1 :])
    for length in range(len(text)):
        with pytest.raises((BadInvite, BadAddress)):
            parse_invite(text[:length])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:1",
        "http://host/a.b.c.d",
        "swarm://",
        "swarm://host",
        "swarm:///...",
        "swarm://h/.....",
        "swarm://h/-.-.-.\udcff",
    ],
)
def test_what_is_no_invite(text: str) -> None:
    with pytest.raises((BadInvite, BadAddress)):
        parse_invite(text)
    with pytest.raises(BadInvite):
        parse_invite("swarm://" + "x" * 2000)


@given(st.text(alphabet=st.sampled_from("swarm:/.-_[]%AZaz09=ü\x00"), max_size=120))
def test_random_texts(text: str) -> None:
    for candidate in (text, "swarm://host/" + text):
        try:
            assert str(parse_invite(candidate))
        except SwarmError:
            continue


def test_tokens() -> None:
    assert len({new_token() for _ in range(10)}) == 10
    first = token_from_text("correct horse")
    assert len(first) == 32
    assert token_from_text("  correct horse\n") == first
    assert token_from_text("correct horsf") != first
    for wrong in ("", "   ", "x" * 1001):
        with pytest.raises(BadToken):
            token_from_text(wrong)
