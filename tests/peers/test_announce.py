"""Staying known at a tracker: through restarts of the tracker, changes of what is held, and at the end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from swarm.peers.announce import Announcer, Reach, Standing
from swarm.peers.executor import Executor, profile_of
from swarm.peers.inventory import hash_files, list_files
from swarm.peers.links import Links
from swarm.peers.operator import LIFETIME_S, Publication, publish
from swarm.peers.tracking import TrackerClient
from swarm.wire import rpc
from swarm.wire.address import Address
from swarm.wire.holdings import EMPTY, IndexSet
from swarm.wire.keys import KeyPair, PeerKey
from swarm.wire.messages import Message
from swarm.wire.messages.tracker import (
    HeartbeatSeen,
    HoldExperts,
    PeerRegistered,
    RegisterPeer,
    TryReach,
)
from tests.e2e.hosts import lasting_port
from tracker.catalogue import VERSIONS_KEPT, NameTaken
from tracker.reach import DialBack
from tracker.registry import Limits
from tracker.server import Options, Tracker, open_tracker
from tracker.store import MemoryStore

OPERATOR, TRACKER, PEER = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))
NOW_S = 1_900_000_000


@pytest.fixture
def publication(tmp_path: Path) -> Publication:
    return published(tmp_path, OPERATOR, NOW_S)


def published(folder: Path, operator: KeyPair, now_s: int) -> Publication:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "a").write_bytes(b"a")
    (model / "b").write_bytes(b"b")
    files = hash_files(model, list_files(model), folder / "hashes")
    return publish("tiny", files, (0, 4), operator, folder / operator.key.hex()[:8], now_s=now_s)


class Fixed:
    """A clock for manifests; trio's for the rest."""

    def monotonic_s(self) -> float:
        return trio.current_time()

    def work_s(self) -> float:
        return 0.0

    def unix_s(self) -> float:
        return NOW_S


@asynccontextmanager
async def tracking(
    port: int = 0,
    store: MemoryStore | None = None,
    dial_back: DialBack | None = None,
    without: type[Message] | None = None,
) -> AsyncIterator[tuple[Tracker, Address]]:
    """A tracker; `without`: a message that it does not know."""
    listeners = await rpc.listen("127.0.0.1", port)
    options = Options(limits=Limits(heartbeat_s=0.05, lifetime_s=60))
    async with (
        trio.open_nursery() as nursery,
        open_tracker(
            TRACKER, store or MemoryStore(), options=options, clock=Fixed(), dial_back=dial_back
        ) as tracker,
    ):
        handlers = {kind: answer for kind, answer in tracker.handlers().items() if kind is not without}
        (address,) = await nursery.start(partial(rpc.serve), listeners, TRACKER, handlers)
        yield tracker, address
        nursery.cancel_scope.cancel()
    for listener in listeners:
        await listener.aclose()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what a task of the code under test brings about, in real time: it talks over real sockets."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await trio.sleep(0.005)


def announcer_for(
    nursery: trio.Nursery, address: Address, publication: Publication, port: int = 0
) -> Announcer:
    client = TrackerClient(Links(nursery, PEER), address, TRACKER.key)
    held = {publication.root: lambda: IndexSet.full(2)}
    return Announcer(client, Reach(port), [publication], held)  # type: ignore[arg-type]


async def test_a_peer_registers_publishes_holds_and_leaves(publication: Publication) -> None:
    async with tracking() as (tracker, address), trio.open_nursery() as nursery:
        announcer = announcer_for(nursery, address, publication)
        async with trio.open_nursery() as running:
            await running.start(announcer.run)
            assert announcer.standing.registered
            assert announcer.standing.obstacle != ""
            assert PEER.key in tracker.registry
            (model,) = tracker.catalogue.newest("", 10)[0]
            assert model.chunks.served.held(PEER.key) == IndexSet.full(2)
            assert model.layout.experts_in_layer == (0, 4)
            running.cancel_scope.cancel()
        await until(lambda: PEER.key not in tracker.registry)
        nursery.cancel_scope.cancel()


async def test_what_is_held_and_published_is_told_when_it_changes(
    publication: Publication, tmp_path: Path
) -> None:
    async with tracking() as (tracker, address), trio.open_nursery() as nursery:
        announcer = announcer_for(nursery, address, publication)
        await nursery.start(announcer.run)
        later = published(tmp_path, OPERATOR, NOW_S + LIFETIME_S // 2 + 1)
        announcer.publications.append(later)
        announcer.held[publication.root] = lambda: IndexSet.of([1])
        announcer.held[later.root] = lambda: IndexSet.full(2)
        announcer.changed()
        await until(lambda: tracker.catalogue.newest("", 1)[0][0].stored.version == 2)
        newest = tracker.catalogue.model(later.root)
        await until(lambda: newest.chunks.served.held(PEER.key) == IndexSet.full(2))
        assert tracker.catalogue.model(publication.root).chunks.served.held(PEER.key) == IndexSet.of([1])
        nursery.cancel_scope.cancel()


async def test_banks_may_come_while_others_are_told_of() -> None:
    told: list[bytes] = []
    profiles = [profile_of(bytes([number]) * 32, "q8") for number in (1, 2)]
    banks = [
        SimpleNamespace(profile=one, ready=EMPTY, resident=lambda: EMPTY, last_resort=False)
        for one in profiles
    ]

    class Listening:
        async def ask(self, message: Message, *_: object) -> SimpleNamespace:
            if isinstance(message, RegisterPeer):
                return SimpleNamespace(message=PeerRegistered(1, "", "", "", 50, 60_000))
            if isinstance(message, HoldExperts):
                told.append(message.root)
                if len(told) == 1:
                    executor.add(banks[1])  # type: ignore[arg-type]
                    announcer.changed()
            await trio.lowlevel.checkpoint()
            return SimpleNamespace(message=HeartbeatSeen(60_000, False, 0, 0, 0))

        async def notify(self, message: Message) -> None: ...

    executor = Executor(PEER)
    executor.add(banks[0])  # type: ignore[arg-type]
    announcer = Announcer(Listening(), Reach(0), executor=executor)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(announcer.run)
        await until(lambda: len(told) >= 3)
        nursery.cancel_scope.cancel()
    first, second = (profile.root for profile in profiles)
    assert told[:3] == [first, first, second]


async def test_a_server_whose_model_was_renewed_often_registers_again(
    publication: Publication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.announce.RETRY_S", 0.05)
    async with tracking() as (tracker, address), trio.open_nursery() as nursery:
        announcer = announcer_for(nursery, address, publication)
        await nursery.start(announcer.run)
        for number in range(1, VERSIONS_KEPT + 2):
            later = published(tmp_path, OPERATOR, NOW_S + number * (LIFETIME_S // 2 + 1))
            announcer.publications.append(later)
            announcer.held[later.root] = lambda: IndexSet.full(2)
            announcer.changed()
            await until(lambda: announcer.publications[-1].root in announcer._published)
        first = announcer.generation
        tracker.registry.remove(PEER.key)
        await until(lambda: announcer.standing.registered and announcer.generation != first)
        assert len(announcer.publications) == len(announcer.held) == VERSIONS_KEPT
        assert tracker.catalogue.model(announcer.publications[-1].root).chunks.served.held(PEER.key)
        nursery.cancel_scope.cancel()


async def test_a_tracker_that_restarts_learns_everything_again(
    publication: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.announce.RETRY_S", 0.05)
    gone, seen, port = trio.Event(), list[Standing](), lasting_port()

    async def first(task_status: trio.TaskStatus[Address]) -> None:
        async with tracking(port) as (_, address):
            task_status.started(address)
            await gone.wait()

    async with trio.open_nursery() as nursery:
        address: Address = await nursery.start(first)
        announcer = announcer_for(nursery, address, publication)
        announcer.on_change = seen.append
        await nursery.start(announcer.run)
        gone.set()
        await until(lambda: not announcer.standing.registered)
        assert announcer.standing.problem
        async with tracking(port) as (tracker, _):
            await until(lambda: announcer.standing.registered)
            model = tracker.catalogue.model(publication.root)
            assert model.chunks.served.held(PEER.key) == IndexSet.full(2)
        assert [standing.registered for standing in seen][:1] == [True]
        assert seen[-1].registered
        nursery.cancel_scope.cancel()


async def test_a_first_registration_that_is_refused_is_raised(
    publication: Publication, tmp_path: Path
) -> None:
    async with tracking() as (_, address), trio.open_nursery() as nursery:
        await nursery.start(announcer_for(nursery, address, publication).run)
        other = published(tmp_path, KeyPair(b"\x09" * 32), NOW_S)
        with pytest.raises(rpc.RemoteError, match="belongs to the operator") as refused:
            await announcer_for(nursery, address, other).run()
        assert refused.value.remote_code == NameTaken.code
        nursery.cancel_scope.cancel()


async def test_a_port_that_is_opened_later_is_noticed(
    publication: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.announce.FIRST_REACH_S", 0.0)
    is_open = False

    async def dial_back(address: Address, key: PeerKey) -> None:
        assert (address.port, key) == (7300, PEER.key)
        if not is_open:
            raise OSError("the firewall is closed")

    async with tracking(dial_back=dial_back) as (tracker, address), trio.open_nursery() as nursery:
        announcer = announcer_for(nursery, address, publication, 7300)
        told: list[str] = []
        announcer.on_change = lambda standing: told.append(standing.address)
        await nursery.start(announcer.run)
        first = announcer.generation
        assert announcer.standing == Standing(True, "", "the firewall is closed")
        is_open = True
        await until(lambda: announcer.standing.address != "")
        contact = tracker.registry.contact(PEER.key, near=True, relay=False)
        assert contact is not None
        assert (contact.host, contact.port) == ("127.0.0.1", 7300)
        assert told == ["", "127.0.0.1:7300"]
        assert announcer.generation == first
        assert tracker.catalogue.model(publication.root).chunks.served.held(PEER.key) == IndexSet.full(2)
        nursery.cancel_scope.cancel()


async def test_a_tracker_that_does_not_dial_back_again_is_no_trouble(
    publication: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.announce.FIRST_REACH_S", 0.0)
    asked = 0

    async def dial_back(address: Address, key: PeerKey) -> None:
        raise OSError("the firewall is closed")

    async with (
        tracking(dial_back=dial_back, without=TryReach) as (_, address),
        trio.open_nursery() as nursery,
    ):
        announcer = announcer_for(nursery, address, publication, 7300)
        await nursery.start(announcer.run)
        first = announcer.generation

        def seen(_: object) -> None:
            nonlocal asked
            asked += 1

        announcer.on_seen = seen
        await until(lambda: asked > 4)
        assert announcer._tries > 1
        assert (announcer.standing.registered, announcer.generation) == (True, first)
        nursery.cancel_scope.cancel()
