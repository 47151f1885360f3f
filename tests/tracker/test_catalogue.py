"""Names and versions: the first key owns a name, versions only grow, every refusal says why."""

import pytest

from swarm.trust.keyring import Keyring
from swarm.trust.manifest import Manifest
from swarm.wire.holdings import IndexSet
from tests.tracker.kit import NOW_S, OPERATOR, Published, keys, manifest, published
from tracker.catalogue import (
    MAX_PROFILES,
    PROFILES_A_NETWORK,
    PROFILES_LISTED,
    VERSIONS_KEPT,
    BadLayout,
    Catalogue,
    ManifestExpired,
    NameTaken,
    OldVersion,
    TooManyProfiles,
    UnknownModel,
)
from tracker.holdings import PROMISE_S
from tracker.room import ABSENT_S, COUNTS_S, GONE_S, NoRoom, Room

PEER, OTHER = keys(1).key, keys(2).key
PROFILE = b"p" * 32


def publish(
    catalogue: Catalogue, new: Published, network: str | None = None, now_s: float = 0.0
) -> list[bytes] | None:
    stored = catalogue.check(new.signed, new.encoded, new.layout, new.layout_signature, NOW_S + now_s)
    if stored is None:
        return None
    dropped = catalogue.to_drop(stored, new.signed, network, now_s)
    catalogue.drop(dropped)
    catalogue.add(stored, new.signed, network, now_s)
    return dropped


def names_of(catalogue: Catalogue) -> list[str]:
    return [model.stored.name for model in catalogue.newest("", 99)[0]]


def test_the_first_key_owns_the_name() -> None:
    catalogue = Catalogue()
    publish(catalogue, published())
    with pytest.raises(NameTaken, match="serve the model under another --name"):
        publish(catalogue, published(manifest(version=2), operator=keys(7)))
    publish(catalogue, published(manifest("other"), operator=keys(7)))
    assert catalogue.revision == 2


def test_versions_only_grow_and_publishing_again_changes_nothing() -> None:
    catalogue = Catalogue()
    publish(catalogue, published(manifest(version=5)))
    assert publish(catalogue, published(manifest(version=5))) is None
    for old in (manifest(version=4), manifest(version=5, chunks=3)):
        with pytest.raises(OldVersion, match="version 5 has been published"):
            publish(catalogue, published(old))
    publish(catalogue, published(manifest(version=6)))
    assert publish(catalogue, published(manifest(version=5))) is None  # its servers may come back
    assert catalogue.newest("", 9)[0][0].stored.version == 6


def test_a_rotated_key_goes_on_and_the_retired_one_does_not() -> None:
    catalogue = Catalogue()
    first = Keyring.start(OPERATOR)
    new = keys(8)
    both = first.succeed(OPERATOR, new)
    publish(catalogue, published(manifest(version=1), keyring=first))
    publish(catalogue, published(manifest(version=2), keyring=both))
    publish(catalogue, published(manifest(version=3), operator=new, keyring=both.retire(new)))
    for keyring in (first, both):
        with pytest.raises(NameTaken):
            publish(catalogue, published(manifest(version=4), keyring=keyring))


def test_the_same_files_under_a_newer_keyring_keep_their_holders() -> None:
    catalogue = Catalogue()
    first = Keyring.start(OPERATOR)
    one = published(keyring=first)
    publish(catalogue, one)
    catalogue.model(one.root).chunks.serve(PEER, IndexSet.of([3]), 0)
    assert publish(catalogue, published(keyring=first.succeed(OPERATOR, keys(8)))) == []
    assert catalogue.model(one.root).chunks.served.held(PEER) == IndexSet.of([3])
    assert catalogue.model(one.root).stored.operator == keys(8).key


def test_old_versions_stay_for_a_while() -> None:
    catalogue = Catalogue()
    roots = []
    for version in range(1, VERSIONS_KEPT + 3):
        new = published(manifest(version=version))
        roots.append(new.root)
        forgotten = publish(catalogue, new)
        assert (
            forgotten == roots[: version - VERSIONS_KEPT][-1:] if version > VERSIONS_KEPT else forgotten == []
        )
    for root in roots[-VERSIONS_KEPT:]:
        assert catalogue.model(root).stored.root == root
    with pytest.raises(UnknownModel, match="list its models again"):
        catalogue.model(roots[0])


def test_expired_unsigned_or_oversized_is_refused() -> None:
    catalogue = Catalogue()
    with pytest.raises(ManifestExpired, match="must sign it again"):
        publish(catalogue, published(manifest(expires=NOW_S)))
    good = published()
    forged = Published(good.signed, (0, 16, 17), good.layout_signature)
    with pytest.raises(BadLayout, match="did not sign it"):
        publish(catalogue, forged)
    with pytest.raises(BadLayout, match="more than"):
        publish(catalogue, published(layout=(65535,) * 40))
    with pytest.raises(UnknownModel):
        catalogue.model(good.root)


def test_names_are_listed_in_pages() -> None:
    catalogue = Catalogue()
    for name in "cadb":
        publish(catalogue, published(manifest(name)))
    first, more = catalogue.newest("", 3)
    assert [model.stored.name for model in first] == ["a", "b", "c"]
    assert more
    rest, more = catalogue.newest("c", 3)
    assert [model.stored.name for model in rest] == ["d"]
    assert not more


def test_a_summary_tells_the_coverage() -> None:
    catalogue = Catalogue()
    new = published(manifest(chunks=10))
    publish(catalogue, new)
    model = catalogue.model(new.root)
    model.chunks.serve(PEER, IndexSet.full(10), 0)
    model.chunks.serve(OTHER, IndexSet.of([1, 2]), 0)
    model.profile(PROFILE).serve(PEER, IndexSet.from_ranges([(0, 20)]), 0)
    summary = model.summary()
    assert (summary.holders, summary.whole_holders, summary.least_replicas) == (2, 1, 1)
    assert (summary.chunks, summary.covered_chunks, summary.experts) == (10, 10, 32)
    assert summary.model_bytes == 10 << 20
    (experts,) = summary.coverage
    assert (experts.profile, experts.donors, experts.covered, experts.least_replicas) == (PROFILE, 1, 20, 0)


def test_a_peer_is_forgotten_everywhere() -> None:
    catalogue = Catalogue()
    one, two = published(), published(manifest("two"))
    for new in (one, two):
        publish(catalogue, new)
        model = catalogue.model(new.root)
        catalogue.note(PEER, new.root)
        model.chunks.tell(PEER, IndexSet.of([1, 2]), 0)
        model.chunks.serve(PEER, IndexSet.of([1]), 0)
        model.profile(PROFILE).serve(PEER, IndexSet.of([5]), 0)
    assert catalogue.roots_of(PEER) == {one.root, two.root}
    catalogue.forget(PEER)
    assert catalogue.roots_of(PEER) == set()
    for new in (one, two):
        for holdings in catalogue.model(new.root).holdings():
            assert PEER not in holdings.served
            assert PEER not in holdings.told
            assert not holdings.donors


def test_what_a_donor_was_told_counts_until_it_serves_it() -> None:
    catalogue = Catalogue()
    new = published()
    publish(catalogue, new)
    chunks = catalogue.model(new.root).chunks
    chunks.tell(PEER, IndexSet.of([1, 2, 3]), 0)
    chunks.serve(PEER, IndexSet.of([2, 9]), 0)
    assert chunks.served.held(PEER) == IndexSet.of([2, 9])
    assert chunks.told.held(PEER) == IndexSet.of([1, 2, 3, 9])
    chunks.serve(OTHER, IndexSet.of([4]), 0)
    assert chunks.told.held(OTHER) == IndexSet.of([4])


def test_a_promise_is_released_when_nothing_comes_of_it() -> None:
    catalogue = Catalogue()
    new = published()
    publish(catalogue, new)
    chunks = catalogue.model(new.root).chunks
    chunks.tell(PEER, IndexSet.of([1, 2, 3]), 0)
    chunks.tell(OTHER, IndexSet.of([7]), 0)
    chunks.serve(PEER, IndexSet.of([1]), 300)
    chunks.serve(PEER, IndexSet.of([1]), 500)
    chunks.serve(OTHER, IndexSet.of([7]), 500)
    catalogue.release(PROMISE_S + 299)
    assert chunks.told.held(PEER) == IndexSet.of([1, 2, 3])
    catalogue.release(PROMISE_S + 300)
    assert chunks.told.held(PEER) == IndexSet.of([1])
    assert chunks.told.held(OTHER) == IndexSet.of([7])


def test_profiles_are_few_and_unused_ones_make_room() -> None:
    catalogue = Catalogue()
    new = published()
    publish(catalogue, new)
    model = catalogue.model(new.root)
    for number in range(20):
        model.profile(bytes([number]) * 32)
    for number in range(MAX_PROFILES):
        model.profile(bytes([100 + number]) * 32).serve(keys(number).key, IndexSet.full(number + 1), 0)
    with pytest.raises(TooManyProfiles, match="Use the --weights and the version"):
        model.profile(b"z" * 32)
    model.profile(bytes([107]) * 32).serve(OTHER, IndexSet.full(8), 0)
    listed = model.summary().coverage
    assert len(listed) == PROFILES_LISTED
    assert (bytes([107]) * 32, 2) in [(one.profile, one.donors) for one in listed]


def test_a_network_adds_few_profiles_so_that_others_find_room() -> None:
    catalogue = Catalogue()
    new = published()
    publish(catalogue, new)
    model = catalogue.model(new.root)
    for number in range(PROFILES_A_NETWORK):
        model.profile(bytes([number]) * 32, "198.51.7.0/24").serve(keys(number).key, IndexSet.of([1]), 0)
    with pytest.raises(TooManyProfiles, match=r"no more than 2 of them from 198\.51\.7\.0/24"):
        model.profile(b"z" * 32, "198.51.7.0/24")
    assert model.profile(bytes(32), "198.51.7.0/24").is_served  # those that are there take anybody
    model.profile(b"z" * 32, "198.51.8.0/24").serve(OTHER, IndexSet.of([1]), 0)


def test_a_peer_leaves_the_profiles_that_it_serves_no_more() -> None:
    catalogue = Catalogue()
    new = published()
    publish(catalogue, new)
    model = catalogue.model(new.root)
    for peer in (PEER, OTHER):
        model.profile(PROFILE).serve(peer, IndexSet.of([1]), 0)
    assert model.leave_others(PEER, PROFILE) == []
    assert model.leave_others(PEER, b"q" * 32) == [PROFILE]
    assert list(model.profile(PROFILE).told) == [OTHER]


def test_a_name_is_free_when_nobody_serves_it_and_its_manifest_has_expired() -> None:
    catalogue = Catalogue()
    served, gone, fresh = (
        published(manifest(name, expires=NOW_S + life))
        for name, life in (("served", 100), ("gone", 100), ("fresh", 10**6))
    )
    for new in (served, gone, fresh):
        publish(catalogue, new)
    catalogue.model(served.root).chunks.serve(PEER, IndexSet.of([3]), 0)
    catalogue.release(50)
    assert catalogue.lapsed(NOW_S + 200, 200) == []  # servers restart, and so do trackers
    catalogue.release(ABSENT_S)
    assert catalogue.lapsed(NOW_S + ABSENT_S, ABSENT_S) == [gone.root]
    catalogue.drop([gone.root])
    assert names_of(catalogue) == ["fresh", "served"]
    publish(catalogue, published(manifest("gone", expires=NOW_S + 10**6), operator=keys(7)))
    catalogue.forget(PEER)
    catalogue.model(served.root).chunks.forget(PEER)
    assert catalogue.lapsed(NOW_S + 2 * ABSENT_S, 2 * ABSENT_S + 1) == [served.root]


@pytest.mark.parametrize("issued", [NOW_S - 1, 1 << 39])
def test_no_manifest_holds_a_name_for_ever(issued: int) -> None:
    catalogue = Catalogue()
    publish(catalogue, published(Manifest("taken", 1, issued, (1 << 40) - 1, manifest().files)))
    assert len(catalogue.lapsed(NOW_S + COUNTS_S, ABSENT_S)) == 1


def test_one_network_takes_no_more_than_its_share() -> None:
    catalogue = Catalogue(Room(names=4, bytes=1 << 30, names_a_network=2, bytes_a_network=1 << 30))
    for name in ("a", "b"):
        publish(catalogue, published(manifest(name)), "198.51.7.0/24")
    with pytest.raises(NoRoom, match=r"“c”: it keeps 2 names from 198\.51\.7\.0/24.*ask whoever runs it"):
        publish(catalogue, published(manifest("c")), "198.51.7.0/24")
    publish(catalogue, published(manifest("a", version=2)), "198.51.7.0/24")
    publish(catalogue, published(manifest("c")), "198.51.8.0/24")
    publish(catalogue, published(manifest("d")))
    with pytest.raises(NoRoom, match="it keeps 4 names, all of them in use"):
        publish(catalogue, published(manifest("e")), "198.51.9.0/24")
    assert names_of(catalogue) == ["a", "b", "c", "d"]


def test_names_that_nobody_has_served_for_days_make_room_the_longest_first() -> None:
    catalogue = Catalogue(Room(names=2, bytes=1 << 30, names_a_network=9, bytes_a_network=1 << 30))
    for name, now_s in (("served", 0.0), ("gone", 10.0)):
        publish(catalogue, published(manifest(name, expires=NOW_S + 10**9)), now_s=now_s)
    root = published(manifest("served", expires=NOW_S + 10**9)).root
    catalogue.model(root).chunks.serve(PEER, IndexSet.of([3]), 0)
    new = published(manifest("new", expires=NOW_S + 10**9))
    catalogue.release(GONE_S)
    with pytest.raises(NoRoom):
        publish(catalogue, new, now_s=GONE_S)
    assert publish(catalogue, new, now_s=GONE_S + 10) == [
        published(manifest("gone", expires=NOW_S + 10**9)).root
    ]
    assert names_of(catalogue) == ["new", "served"]


def test_what_experts_take_counts_too() -> None:
    catalogue = Catalogue(Room(names=9, bytes=1 << 20, names_a_network=9, bytes_a_network=1 << 20))
    publish(catalogue, published(manifest("a"), layout=(100,)))
    with pytest.raises(NoRoom, match="it keeps 1 MiB"):
        publish(catalogue, published(manifest("b"), layout=(20_000,)))


def test_of_models_that_are_gone_nothing_is_remembered() -> None:
    catalogue = Catalogue()
    peer = keys(1).key
    for version in range(1, 30):
        new = published(manifest(version=version))
        stored = catalogue.check(new.signed, new.encoded, new.layout, new.layout_signature, NOW_S)
        assert stored is not None
        catalogue.drop(catalogue.to_drop(stored, new.signed, None, 0.0))
        catalogue.add(stored, new.signed, None, 0.0)
        catalogue.note(peer, new.root)
    assert len(catalogue._peers[peer]) == len(catalogue.roots_of(peer)) == VERSIONS_KEPT
