"""Registrations: replaced by a restart, prolonged by heartbeats, bounded by quotas, published with care."""

import pytest

from swarm.wire.address import Address, parse_address
from swarm.wire.keys import PeerKey
from swarm.wire.messages.tracker import Contact
from tracker.quota import Quota, Quotas, Rate
from tracker.registry import LOOPBACK, Limits, NotRegistered, OutOfOrder, Registry, TooManyPeers, network_of

LIMITS = Limits(peers=5, peers_per_network=2, lifetime_s=60, heartbeat_s=20)
HERE = Address("127.0.0.1", 50000)
THERE = Address("203.0.113.7", 50000)


def key(number: int) -> PeerKey:
    return PeerKey(number.to_bytes(32, "big"))


def registry() -> Registry:
    return Registry(LIMITS, first_generation=1000)


def join(peers: Registry, number: int, origin: Address = THERE, now_s: float = 0.0) -> int:
    return peers.register(key(number), origin, Address(origin.host, 7300), False, "test", now_s).generation


def test_a_restart_replaces_the_registration_and_leaves_no_ghost() -> None:
    peers = registry()
    first = join(peers, 1)
    second = join(peers, 1, now_s=5)
    assert second > first
    assert len(peers) == 1
    assert peers.departures == 0
    for stale in (lambda: peers.renew(key(1), first, 9, 6), lambda: peers.leave(key(1), first)):
        with pytest.raises(NotRegistered, match="register again"):
            stale()
    assert peers.renew(key(1), second, 0, 6).deadline_s == 66


def test_silence_expires_and_heartbeats_prolong() -> None:
    peers = registry()
    one, _ = join(peers, 1), join(peers, 2)
    peers.renew(key(1), one, 0, 50)
    assert peers.expire(59.9) == []
    assert peers.expire(60) == [key(2)]
    assert peers.expire(109) == []
    assert peers.expire(110) == [key(1)]
    assert peers.departures == 2
    assert len(peers) == 0


def test_a_replayed_or_late_heartbeat_prolongs_nothing() -> None:
    peers = registry()
    generation = join(peers, 1)
    peers.renew(key(1), generation, 7, 10)
    for sequence in (7, 3):
        with pytest.raises(OutOfOrder):
            peers.renew(key(1), generation, sequence, 30)
    # A clock that stands still or goes back never shortens a life.
    assert peers.renew(key(1), generation, 8, 2).deadline_s == 70


def test_quotas_of_networks_and_of_all() -> None:
    peers = registry()
    join(peers, 1)
    join(peers, 2)
    with pytest.raises(TooManyPeers, match=r"203\.0\.113\.0/24"):
        join(peers, 3)
    join(peers, 1)
    join(peers, 3, Address("203.0.114.1", 1))
    join(peers, 4, HERE)
    join(peers, 5, HERE)
    with pytest.raises(TooManyPeers, match="anywhere"):
        join(peers, 6, HERE)
    peers.remove(key(2))
    join(peers, 6)
    join(peers, 6, Address("198.51.100.1", 1))
    join(peers, 6)


def test_loopback_addresses_are_for_the_loopback_only() -> None:
    peers = registry()
    join(peers, 1, HERE)
    assert peers.contact(key(1), True, False) == Contact(key(1), "127.0.0.1", 7300, False)
    assert peers.contact(key(1), False, False) == Contact(key(1), "", 7300, False)
    peers.register(key(1), HERE, HERE, True, "test", 0)
    assert peers.contact(key(1), False, False) is None
    assert peers.contact(key(1), False, True) == Contact(key(1), "", 0, True)


def test_an_unreachable_peer_is_named_only_with_its_relay() -> None:
    peers = registry()
    peers.register(key(1), THERE, None, False, "test", 0)
    assert peers.contact(key(1), False, False) is None
    assert peers.contact(key(1), False, True) == Contact(key(1), "", 0, True)
    assert peers.contact(key(2), False, True) is None


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.3.2.1", LOOPBACK),
        ("[::1]", LOOPBACK),
        ("[::ffff:127.0.0.1]", LOOPBACK),
        ("192.0.2.77", "192.0.2.0/24"),
        ("[::ffff:192.0.2.77]", "192.0.2.0/24"),
        ("[2001:db8:1:2ff::9]", "2001:db8:1:200::/56"),
        ("[fe80::1%eth0]", "fe80::/56"),
        ("host.example", "host.example"),
    ],
)
def test_networks(host: str, network: str) -> None:
    assert network_of(parse_address(host)) == network


def test_a_quota_fills_with_time_and_is_bounded_in_memory() -> None:
    quota = Quota(Rate(per_second=2, burst=3), most_sources=2)
    assert [quota.take("a", 0) for _ in range(3)] == [0, 0, 0]
    assert quota.take("a", 0) == pytest.approx(0.5)
    assert quota.take("a", 0.5) == 0
    assert quota.take("b", 0.5, tokens=3) == 0
    assert quota.take("b", 0.5, tokens=3) == pytest.approx(1.5)
    assert quota.take("a", 0.2) > 0
    quota.take("c", 1)
    assert len(quota) == 2


def test_a_key_and_its_network_pay_together_or_not_at_all() -> None:
    quotas = Quotas(Rate(per_second=1, burst=2), Rate(per_second=0.5, burst=3))
    assert [quotas.take("a", "net", 0) for _ in range(2)] == [0, 0]
    assert quotas.take("a", "net", 0) == 1
    assert quotas.take("b", "net", 0) == 0  # what was refused to its neighbour took nothing
    assert quotas.take("b", "net", 0) == 2
    assert quotas.take("b", None, 0) == 0  # nor of its own
    assert quotas.take("b", None, 0) == 1
    assert quotas.take("a", "net", 2) == 0
