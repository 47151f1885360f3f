"""Which addresses a tracker dials back, and what it makes of the answers."""

import pytest
import trio

from swarm.wire.address import Address, parse_address
from swarm.wire.keys import PeerKey
from swarm.wire.rpc import Unreachable
from tests.tracker.kit import keys
from tracker.reach import DIAL_BACK_S, MOST_CANDIDATES, candidates, find_reach, forbidden, plain

PUBLIC = Address("198.51.7.9", 50000)
PRIVATE = Address("192.168.1.9", 50000)
LOOPBACK = Address("127.0.0.1", 50000)
KEY = keys(1).key


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (PUBLIC, "198.51.8.1", True),
        (PUBLIC, "10.1.2.3", False),
        (PUBLIC, "127.0.0.1", False),
        (PUBLIC, "::1", False),
        (PUBLIC, "::ffff:127.0.0.1", False),
        (PUBLIC, "::ffff:10.0.0.1", False),
        (PUBLIC, "169.254.169.254", False),
        (PUBLIC, "fe80::1", False),
        (PUBLIC, "0.0.0.0", False),
        (PUBLIC, "224.0.0.1", False),
        (PRIVATE, "10.1.2.3", True),
        (PRIVATE, "169.254.169.254", False),
        (PRIVATE, "127.0.0.1", False),
        (LOOPBACK, "127.0.0.1", True),
        (LOOPBACK, "10.1.2.3", True),
    ],
)
def test_a_peer_cannot_send_the_tracker_anywhere(origin: Address, host: str, allowed: bool) -> None:
    ip = parse_address(f"[{host}]:1" if ":" in host else host).ip
    assert ip is not None
    assert (forbidden(ip, origin) is None) == allowed


def test_candidates_are_few_distinct_and_advertised_first() -> None:
    found, refused = candidates(PUBLIC, ("host.example", "198.51.7.9:7300", "198.51.8.8:1"), 7300)
    assert [str(address) for address in found] == ["host.example:7300", "198.51.7.9:7300", "198.51.8.8:1"]
    assert refused == []
    found, refused = candidates(PUBLIC, ("localhost", "::::", "198.51.8.8:0", "192.168.0.1"), 0)
    assert found == []
    assert [
        reason for reason in refused if "loopback" in reason or "no IPv6" in reason or "no port" in reason
    ]
    assert len(refused) == 4
    many = tuple(f"198.51.8.{number}:1" for number in range(9))
    assert len(candidates(PUBLIC, many, 7300)[0]) == MOST_CANDIDATES


def test_mapped_addresses_are_plain() -> None:
    assert plain(Address("::ffff:192.0.2.1", 5)) == Address("192.0.2.1", 5)
    assert plain(Address("2001:db8::1", 5)) == Address("2001:db8::1", 5)
    assert plain(Address("host.example", 5)) == Address("host.example", 5)


async def test_the_first_that_answers_in_order_is_published(autojump_clock: trio.testing.MockClock) -> None:
    async def dial_back(address: Address, key: PeerKey) -> None:
        assert key == KEY
        if address.port == 1:
            await trio.sleep(DIAL_BACK_S / 2)
        if address.port == 2:
            raise Unreachable(address=address, reason="nobody is there")

    reach = await find_reach(KEY, PUBLIC, ("198.51.8.8:2", "198.51.8.8:1", "198.51.8.8:3"), 7300, dial_back)
    assert reach.address == Address("198.51.8.8", 1)
    assert reach.obstacle == ""


async def test_nobody_waits_longer_than_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async def dial_back(address: Address, key: PeerKey) -> None:
        if address.port == 2:
            raise OSError("no route to host")
        await trio.sleep_forever()

    started_s = trio.current_time()
    reach = await find_reach(KEY, PUBLIC, ("198.51.8.8:2",), 7300, dial_back)
    assert trio.current_time() - started_s == pytest.approx(DIAL_BACK_S)
    assert reach.address is None
    assert reach.obstacle == "no route to host 198.51.7.9:7300 did not answer within 4 s."


async def test_who_listens_nowhere_is_told_so() -> None:
    async def dial_back(address: Address, key: PeerKey) -> None:
        raise AssertionError("nobody should be dialled")

    reach = await find_reach(KEY, PUBLIC, (), 0, dial_back)
    assert (reach.address, reach.obstacle) == (None, "The peer listens nowhere.")


async def test_a_name_is_dialled_only_where_it_may_lead() -> None:
    dialled: list[Address] = []

    async def dial_back(address: Address, key: PeerKey) -> None:
        dialled.append(address)

    class Names(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # type: ignore[no-untyped-def]
            place = "127.0.0.1" if host == b"inside.example" else "198.51.8.8"
            return [(2, 1, 6, "", (place, port))]

        async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
            raise AssertionError

    trio.socket.set_custom_hostname_resolver(Names())
    try:
        inside = await find_reach(KEY, PUBLIC, ("inside.example:5",), 0, dial_back)
        outside = await find_reach(KEY, PUBLIC, ("outside.example:5",), 0, dial_back)
    finally:
        trio.socket.set_custom_hostname_resolver(None)
    assert inside.address is None
    assert "no peer can be reached there" in inside.obstacle
    assert outside.address == Address("outside.example", 5)
    assert dialled == [Address("198.51.8.8", 5)]
