"""The one parser of addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.wire.address import DEFAULT_PORT, Address, BadAddress, parse_address

GOOD = [
    ("example.org", "example.org", DEFAULT_PORT),
    ("Example.ORG:80", "example.org", 80),
    ("  localhost:0 ", "localhost", 0),
    ("a_b-c.d.", "a_b-c.d.", DEFAULT_PORT),
    ("bücher.example:1", "xn--bcher-kva.example", 1),
    ("127.0.0.1", "127.0.0.1", DEFAULT_PORT),
    ("127.0.0.1:65535", "127.0.0.1", 65535),
    ("::1", "::1", DEFAULT_PORT),
    ("[::1]", "::1", DEFAULT_PORT),
    ("[::1]:9", "::1", 9),
    ("2001:DB8:0::1", "2001:db8::1", DEFAULT_PORT),
    ("[fe80::1%eth0]:9", "fe80::1%eth0", 9),
    ("fe80::1%25eth0", "fe80::1%eth0", DEFAULT_PORT),
    ("::ffff:1.2.3.4", "::ffff:1.2.3.4", DEFAULT_PORT),
]
BAD = [
    "",
    "  ",
    ":80",
    "host:",
    "host:port",
    "host:65536",
    "host:-1",
    "host:+1",
    "host:1 2",
    "host:٣",
    "[::1",
    "[::1]x",
    "[::1]:",
    "[::1]:x",
    "[host]:1",
    "[]:1",
    "1.2.3",
    "1.2.3.4.5",
    "1.2.3.256",
    "01.2.3.4",
    "a:b:c",
    ":::",
    "::1%",
    "::1%a b",
    "::1%a/b",
    "-a.example",
    "a-.example",
    "a..b",
    "a b",
    "a/b",
    "user@host",
    "http://host",
    "x" * 64,
    ".".join(["x" * 60] * 5),
    "host\x00",
    "host\n:1",
    "\x1b[31mhost",
    "ho\udc80st",
    "¹",  # becomes a digit in the name system
]


@pytest.mark.parametrize(("text", "host", "port"), GOOD)
def test_good_addresses(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert (address.host.replace("::ffff:102:304", "::ffff:1.2.3.4"), address.port) == (host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", BAD)
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(BadAddress) as caught:
        parse_address(text)
    assert str(caught.value).isprintable()


def test_the_default_port_can_be_chosen() -> None:
    assert parse_address("host", 5) == Address("host", 5)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::2", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert Address(host, 1).is_loopback is loopback


def test_whom_an_address_is_taken_for() -> None:
    assert Address("10.1.2.3", 1).source == "10.1.2.3"
    assert Address("2001:db8:1:2:3:4:5:6", 1).source == Address("2001:db8:1:2::7", 9).source
    assert Address("2001:db8:1:2::7", 1).source != Address("2001:db8:1:3::7", 1).source
    assert Address("::ffff:10.1.2.3", 1).source != Address("::ffff:10.1.2.4", 1).source
    assert Address("fe80::1%eth0", 1).source == Address("fe80::2", 1).source
    assert Address("a.host", 1).source == "a.host"


@given(st.text(max_size=60))
def test_any_text_gives_an_address_or_a_named_error(text: str) -> None:
    try:
        address = parse_address(text)
    except BadAddress:
        return
    assert parse_address(str(address)) == address
