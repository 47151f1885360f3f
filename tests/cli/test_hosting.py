"""Where a server is said to be, and the secret of a private swarm."""

import stat
from pathlib import Path

import pytest

from swarm.cli.hosting import Place, TokenDamaged, invite_address, open_store, own_host, secret_of
from swarm.cli.options import HOST
from swarm.peers.settings import Home
from swarm.trust.invite import BadToken, token_from_text
from swarm.wire.address import Address, BadAddress
from tracker.store import MemoryStore, SqliteStore


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        (None, "swarm.example.org", Address("swarm.example.org", 7301)),
        (None, "[2001:db8::5]:80", Address("2001:db8::5", 80)),
        ("127.0.0.1", None, Address("127.0.0.1", 7301)),
        ("::1", None, Address("::1", 7301)),
        ("127.0.0.1", "10.0.0.1:5", Address("10.0.0.1", 5)),
    ],
)
def test_the_address_in_an_invite(listen: str | None, advertise: str | None, expected: Address) -> None:
    assert invite_address(Place(listen, 7301, advertise), 7301) == expected


@pytest.mark.parametrize("listen", [None, "0.0.0.0", "::"])
def test_without_advice_it_is_this_machines_own(listen: str | None) -> None:
    address = invite_address(Place(listen, 0, None), 9)
    assert address == Address(own_host(), 9)
    assert address.host not in ("0.0.0.0", "::")


@pytest.mark.parametrize(("given", "host"), [("[::1]", "::1"), ("::1", "::1"), ("a.example", "a.example")])
def test_a_host_may_have_brackets(given: str, host: str) -> None:
    assert HOST.convert(given, None, None) == host


def test_an_address_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(BadAddress):
        invite_address(Place(None, 7300, "example.org:0"), 7300)


@pytest.mark.parametrize(
    ("listen", "local"), [(None, False), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False)]
)
def test_a_place_on_loopback_is_local(listen: str | None, local: bool) -> None:
    assert Place(listen, 1, None).is_local is local


def test_secrets(tmp_path: Path) -> None:
    paths = Home(tmp_path / "data", tmp_path / "cache")
    assert secret_of(paths, None, False) is None
    assert secret_of(paths, "open sesame", False) == token_from_text("open sesame")
    with pytest.raises(BadToken):
        secret_of(paths, " ", False)
    made = secret_of(paths, None, True)
    assert made is not None
    assert len(made) == 32
    assert secret_of(paths, None, True) == made
    token = paths.data / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    token.write_text("short")
    with pytest.raises(TokenDamaged, match="token"):
        secret_of(paths, None, True)


def test_a_tracker_remembers_where_it_can_be_found_again(tmp_path: Path) -> None:
    paths = Home(tmp_path / "data", tmp_path / "cache")
    assert isinstance(open_store(paths, 0), MemoryStore)
    store = open_store(paths, 7300)
    assert isinstance(store, SqliteStore)
    store.close()
    assert paths.tracker_store(7300).is_file()
