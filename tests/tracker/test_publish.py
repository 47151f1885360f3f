"""Publishing under load and by strangers: places for uploads, names that become free, what is refused and how."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from swarm.trust.manifest import MAX_MANIFEST_BYTES
from swarm.wire.address import Address
from swarm.wire.messages.tracker import ListModels, ManifestPublished, Models, PublishManifest
from swarm.wire.rpc import Busy
from tests.tracker.kit import NOW_S, OPERATOR, FakeCaller, HandClock, Published, keys, manifest, published
from tracker.catalogue import NameTaken
from tracker.publish import (
    CHANGES_A_NETWORK,
    FREE_NAMES_S,
    MOST_UPLOAD_BYTES,
    MOST_UPLOADS,
    PIECE_S,
    UPLOAD_S,
    UPLOADS_A_NETWORK,
    BrokenUpload,
)
from tracker.room import ABSENT_S, STRANGERS, NoRoom
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore, UnusableStore

HERE = Address("127.0.0.1", 50000)


def caller_of(tracker: Tracker, number: int, address: Address | None = None) -> FakeCaller:
    """A caller from a network of its own."""
    return FakeCaller(tracker.handlers(), keys(number), address or Address(f"198.51.{number}.7", 50000))


def begun(total_bytes: int = 1000) -> PublishManifest:
    """The first piece of an upload that is going to be broken."""
    return PublishManifest(0, total_bytes, (), bytes(64))


async def upload(caller: FakeCaller, new: Published) -> None:
    message = PublishManifest(0, len(new.encoded), new.layout, new.layout_signature)
    assert await caller.ask(message, new.encoded) == (
        ManifestPublished(True, len(new.encoded), new.root),
        b"",
    )


async def names(tracker: Tracker) -> list[str]:
    listed, _ = await caller_of(tracker, 99).ask(ListModels())
    assert isinstance(listed, Models)
    return [model.name for model in listed.models]


@asynccontextmanager
async def world(
    options: Options | None = None, store: MemoryStore | None = None
) -> AsyncIterator[tuple[Tracker, HandClock]]:
    clock = HandClock()
    async with open_tracker(keys(0), store or MemoryStore(), options=options, clock=clock) as tracker:
        yield tracker, clock


async def test_places_for_uploads_are_few_and_this_machine_has_its_own() -> None:
    async with world() as (tracker, _):
        for number in range(MOST_UPLOADS):
            await caller_of(tracker, number).ask(begun(), b"some")
        with pytest.raises(Busy, match="ask again in 2"):
            await caller_of(tracker, 50).ask(begun(), b"some")
        await caller_of(tracker, 0).ask(begun(), b"from its beginning")
        await upload(caller_of(tracker, 50, HERE), published())


async def test_a_network_has_few_places_and_all_together_so_many_bytes() -> None:
    async with world() as (tracker, _):
        for number in range(UPLOADS_A_NETWORK):
            await caller_of(tracker, number, Address("198.51.7.7", 1)).ask(begun(), b"some")
        with pytest.raises(Busy):
            await caller_of(tracker, 50, Address("198.51.7.8", 1)).ask(begun(), b"some")
        for number in range(60, 60 + MOST_UPLOAD_BYTES // MAX_MANIFEST_BYTES):
            await caller_of(tracker, number).ask(begun(MAX_MANIFEST_BYTES), b"some")
        with pytest.raises(Busy):
            await caller_of(tracker, 70).ask(begun(MAX_MANIFEST_BYTES), b"some")


async def test_who_stops_in_the_middle_loses_its_place_and_who_goes_on_does_not() -> None:
    async with world() as (tracker, clock):
        stopped = [caller_of(tracker, number) for number in range(MOST_UPLOADS - 1)]
        going, new = caller_of(tracker, 50), caller_of(tracker, 51)
        for caller in (*stopped, going):
            await caller.ask(begun(), b"x")
        clock.now_s = PIECE_S - 1
        await going.ask(replace(begun(), offset=1), b"x")
        with pytest.raises(Busy):
            await new.ask(begun(), b"x")
        clock.now_s = PIECE_S
        await new.ask(begun(), b"x")
        await going.ask(replace(begun(), offset=2), b"x")
        with pytest.raises(BrokenUpload, match="too late"):
            await stopped[0].ask(replace(begun(), offset=1), b"x")
        for offset in range(3, 900):
            clock.now_s += 1
            if clock.now_s >= UPLOAD_S:
                break
            await going.ask(replace(begun(), offset=offset), b"x")
        await caller_of(tracker, 52).ask(begun(), b"x")
        with pytest.raises(BrokenUpload, match="too late"):
            await going.ask(replace(begun(), offset=offset), b"x")


async def test_strangers_fill_their_share_and_the_publisher_is_told_what_to_do() -> None:
    room = replace(STRANGERS, names_a_network=1)
    async with world(Options(room=room)) as (tracker, _):
        await upload(caller_of(tracker, 1), published(manifest("one")))
        with pytest.raises(
            NoRoom, match=r"“two”: it keeps 1 names from 198\.51\.1\.0/24.*Use another tracker"
        ):
            await upload(caller_of(tracker, 1), published(manifest("two")))
        await upload(caller_of(tracker, 1), published(manifest("one", version=2)))
        await upload(caller_of(tracker, 2), published(manifest("two")))
        await upload(caller_of(tracker, 1, HERE), published(manifest("three")))
        assert await names(tracker) == ["one", "three", "two"]


async def test_a_network_publishes_something_new_so_often_and_what_is_known_as_often_as_it_likes() -> None:
    async with world() as (tracker, clock):
        stranger = caller_of(tracker, 1)
        burst = int(CHANGES_A_NETWORK.burst)
        made = [published(manifest(version=version)) for version in range(1, burst + 3)]
        for new in made[:burst]:
            await upload(stranger, new)
        revision = tracker.catalogue.revision
        with pytest.raises(Busy):
            await upload(caller_of(tracker, 1), made[burst])
        assert tracker.catalogue.revision == revision
        await upload(stranger, made[burst - 1])
        await upload(caller_of(tracker, 2), published(manifest("another"), operator=keys(7)))
        clock.now_s += 1 / CHANGES_A_NETWORK.per_second
        await upload(stranger, made[burst])
    async with world(Options(operators=frozenset([OPERATOR.key]))) as (tracker, _):
        for new in made:
            await upload(caller_of(tracker, 1), new)


async def test_a_share_counts_what_is_published_again_after_a_restart() -> None:
    store, options = MemoryStore(), Options(room=replace(STRANGERS, names_a_network=1))
    async with world(options, store) as (tracker, _):
        await upload(caller_of(tracker, 1), published(manifest("one")))
    async with world(options, store) as (tracker, _):
        await upload(caller_of(tracker, 1), published(manifest("one")))
        with pytest.raises(NoRoom):
            await upload(caller_of(tracker, 1), published(manifest("two")))


async def test_operators_that_were_named_have_more_room() -> None:
    async with world(Options(operators=frozenset([OPERATOR.key]))) as (tracker, _):
        for number in range(STRANGERS.names_a_network + 1):
            await upload(caller_of(tracker, 1), published(manifest(f"model {number}")))


async def test_names_become_free_in_the_store_as_well(autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = 0.1  # the store is used in a thread, which takes real time
    store = MemoryStore()
    async with world(store=store) as (tracker, clock):
        await upload(caller_of(tracker, 1), published(manifest(expires=NOW_S + 100)))
        other = published(manifest(expires=NOW_S + 10**6, chunks=3), operator=keys(7))
        clock.now_s = ABSENT_S - 1
        await trio.sleep(FREE_NAMES_S + 1)
        with pytest.raises(NameTaken):
            await upload(caller_of(tracker, 2), other)
        clock.now_s = ABSENT_S
        await trio.sleep(FREE_NAMES_S + 1)
        assert store.manifests() == []
        await upload(caller_of(tracker, 2), other)


async def test_a_disk_that_forgets_nothing_keeps_the_name(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: MemoryStore, roots: object) -> None:
        raise UnusableStore(path="tracker.sqlite", reason="the disk failed")

    autojump_clock.autojump_threshold = 0.1  # the store is used in a thread, which takes real time
    async with world() as (tracker, clock):
        await upload(caller_of(tracker, 1), published(manifest(expires=NOW_S + 100)))
        clock.now_s = ABSENT_S
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "forget", broken)
            await trio.sleep(2 * FREE_NAMES_S + 1)
            assert await names(tracker) == ["model"]
            assert "the disk failed" in caplog.text
        await trio.sleep(FREE_NAMES_S)
        assert await names(tracker) == []
