"""Names and versions: the first key owns a name, versions only grow, every refusal says why."""

import pytest

from swarm.trust.keyring import Keyring
from swarm.wire.holdings import IndexSet
from tests.tracker.kit import NOW_S, OPERATOR, Published, keys, manifest, published
from tracker.catalogue import (
    MAX_PROFILES,
    PROMISE_S,
    VERSIONS_KEPT,
    BadLayout,
    Catalogue,
    ManifestExpired,
    NameTaken,
    OldVersion,
    TooManyModels,
    UnknownModel,
)

PEER, OTHER = keys(1).key, keys(2).key
PROFILE = b"p" * 32


def publish(catalogue: Catalogue, new: Published, now_s: float = NOW_S) -> list[bytes] | None:
    found = catalogue.check(new.signed, new.encoded, new.layout, new.layout_signature, now_s)
    if found is None:
        return None
    stored, forgotten = found
    catalogue.add(stored, new.signed)
    return forgotten


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
        model.profile(bytes([100 + number]) * 32).serve(PEER, IndexSet.of([number]), 0)
    with pytest.raises(TooManyModels, match="numeric profile"):
        model.profile(b"z" * 32)
