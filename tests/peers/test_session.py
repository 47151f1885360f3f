"""A joined swarm: its models, opening them, going offline and coming back, and how it looks."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from engine.source import DirectorySource
from mirror.errors import NotHere
from swarm.demo.generated import write_checkpoint
from swarm.peers import links
from swarm.peers.banks import open_experts
from swarm.peers.models import NoModels, NoSuchModel, NothingKeptHere, SeveralModels, Speed
from swarm.peers.remote import Rules
from swarm.peers.session import Session, join
from swarm.peers.settings import Home, remember
from swarm.peers.target import Target, TokenTwice, parse_target
from swarm.peers.versions import newer
from swarm.trust.invite import BadInvite, Invite
from swarm.wire.address import Address
from swarm.wire.keys import KeyPair
from swarm.wire.messages.tracker import ListModels, Models
from swarm.wire.rpc import Buffer, Handler, Peer
from tests.e2e.hosts import Host, Plan, hosted, lasting_port


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def plan(model: Path, tmp_path: Path) -> Plan:
    return Plan(model, tmp_path / "host")


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path / "data", tmp_path / "cache")


async def test_a_model_is_found_opened_and_read(plan: Plan, place: Home) -> None:
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        (info,) = await session.models()
        assert (info.name, info.version, info.complete, info.accepted) == ("model", 1, True, False)
        opened = await session.open_model()
        assert await session.open_model("model") is opened
        assert opened.notices == ()
        config = (plan.model / "config.json").read_bytes()
        assert bytes(await opened.mirror.read("config.json", 0, len(config))) == config
        assert bytes(await trio.to_thread.run_sync(opened.source.read, "config.json", 0, 5)) == config[:5]
        (info,) = await session.models()
        assert info.accepted

        seen = session.snapshot()
        assert seen.online
        assert (seen.tracker, seen.model) == (host.address, "model")
        assert seen.operator == plan.operator.key
        assert seen.progress.fetched_bytes == len(config)
        (peer,) = seen.peers
        assert (peer.key, peer.given_bytes, peer.wrong, peer.banned) == (
            plan.tracker.key,
            len(config),
            0,
            False,
        )


async def test_all_of_a_model_can_be_brought_here_and_is_there_offline(plan: Plan, place: Home) -> None:
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        opened = await session.open_model()
        seen: list[int] = []
        await opened.fetch_all(seen.append)
        assert seen[-1] == opened.mirror.tree.total_bytes
        assert seen == sorted(seen)
    async with join(parse_target(host.invite), place) as session:
        assert not session.online
        (info,) = await session.models()
        assert (info.name, info.accepted) == ("model", True)
        opened = await session.open_model("model")
        assert "Offline" in opened.notices[0]
        assert "version 1" in opened.notices[0]
        content = await opened.mirror.read("model.safetensors", 0, 1000)
        assert bytes(content) == (plan.model / "model.safetensors").read_bytes()[:1000]


async def test_without_the_network_nothing_is_asked_of_it(plan: Plan, place: Home) -> None:
    async with hosted(plan) as host:
        target = parse_target(host.invite)
        with pytest.raises(NothingKeptHere):
            async with join(target, place, True):
                pass
        async with join(target, place) as session:
            await session.open_model()
        async with join(target, place, True) as session:
            opened = await session.open_model()
            with pytest.raises(NotHere):
                await opened.mirror.read("config.json", 0, 1)


async def test_a_model_that_was_parted_with_asks_the_tracker_no_more(
    plan: Plan, place: Home, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.pool.REFRESH_S", 0.01)
    monkeypatch.setattr("swarm.peers.pool.AGAIN_S", 0.0)
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        opened = await session.open_model()
        with DirectorySource(model) as source:
            bank = open_experts(source, "q8")
            first, second = [await session.experts(opened, bank, Rules()) for _ in range(2)]
            await session.part_with(first)
            await trio.testing.wait_all_tasks_blocked()
            assert not first.pool.nursery.child_tasks
            asked = second.pool._asked_at
            with trio.fail_after(30):
                while second.pool._asked_at == asked:  # noqa: ASYNC110 - nothing tells of it but itself
                    await trio.sleep(0.01)
            bank.close()


async def test_a_swarm_that_comes_back_is_used_again(plan: Plan, place: Home) -> None:
    gone = trio.Event()
    lasting = replace(plan, port=lasting_port())

    async def host_for_a_while(task_status: trio.TaskStatus[Host]) -> None:
        async with hosted(lasting) as host:
            task_status.started(host)
            await gone.wait()

    async with trio.open_nursery() as nursery:
        host: Host = await nursery.start(host_for_a_while)
        async with join(parse_target(host.invite), place) as session:
            opened = await session.open_model()
            gone.set()
            while session.online:
                assert [info.name for info in await session.models()] == ["model"]
            async with hosted(lasting):
                await session.connect()
                assert session.online
                assert bytes(await opened.mirror.read("config.json", 0, 1)) == b"{"


async def test_a_silent_tracker_is_waited_for_once(
    plan: Plan, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting = replace(plan, port=lasting_port())
    async with hosted(lasting) as host, join(parse_target(host.invite), place) as session:
        await session.open_model()
    monkeypatch.setattr(links, "CONNECT_S", 1.0)
    for silent in await trio.open_tcp_listeners(lasting.port, host="127.0.0.1"):
        async with silent, join(parse_target(host.invite), place) as session:
            assert not session.online
            opened = await session.open_model("model")
            with DirectorySource(plan.model) as source, trio.fail_after(0.5):
                await session.experts(opened, open_experts(source, "q8"), Rules())


async def test_a_later_version_is_told_once_and_a_renewal_never(plan: Plan, place: Home) -> None:
    lasting = replace(plan, port=lasting_port())
    looked_at: set[bytes] = set()

    async def look(session: Session, changed: Plan) -> list[int]:
        async with hosted(changed):
            await session.connect()
            seen = [await newer(session, opened, looked_at) for _ in range(2)]
        while session.online:
            await session.models()
        return [info.version for info in seen if info is not None]

    async with trio.open_nursery() as nursery:
        gone = trio.Event()

        async def first(task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED) -> None:
            async with hosted(replace(lasting, now_s=int(time.time()) - 3600)) as host:
                task_status.started(host)
                await gone.wait()

        host: Host = await nursery.start(first)
        async with join(parse_target(host.invite), place) as session:
            opened = await session.open_model()
            assert await newer(session, opened, looked_at) is None
            gone.set()
            while session.online:
                await session.models()
            renewed = replace(lasting, now_s=int(time.time()) + 300 * 86_400)
            assert await look(session, renewed) == []
            (plan.model / "README.md").write_text("changed")
            assert await look(session, lasting) == [3]
            assert (await session.models())[0].version == 1


async def test_a_swarm_that_was_never_there_is_named(place: Home) -> None:
    target = Target(Address("127.0.0.1", 1))
    with pytest.raises(NothingKeptHere, match=r"127\.0\.0\.1:1"):
        async with join(target, place):
            pass
    assert not place.known_trackers.exists()


def listing(names: list[str]) -> dict[type, object]:
    """A tracker that lists its model under other names."""

    def twist(handler: Handler) -> Handler:
        async def answer(caller: Peer, message: ListModels, payload: Buffer) -> tuple[Models, Buffer]:
            found, _ = await handler(caller, message, payload)
            assert isinstance(found, Models)
            (model,) = found.models
            after = [name for name in names if name > message.after]
            return replace(
                found, models=tuple(replace(model, name=name) for name in after[:2]), more=len(after) > 2
            ), b""

        return answer

    return {ListModels: twist}


async def test_a_model_is_chosen_by_name_where_there_are_several(plan: Plan, place: Home) -> None:
    names = ["a", "b", "c", "d", "e"]
    crowd = Plan(plan.model, plan.scratch, twists=listing(names))  # type: ignore[arg-type]
    async with hosted(crowd) as host, join(parse_target(host.invite), place) as session:
        assert [info.name for info in await session.models()] == names
        with pytest.raises(SeveralModels, match="a, b, c, d, e"):
            await session.open_model()
        with pytest.raises(NoSuchModel, match="“f”"):
            await session.open_model("f")


async def test_a_swarm_without_models_says_so(plan: Plan, place: Home) -> None:
    empty = Plan(plan.model, plan.scratch, twists=listing([]))  # type: ignore[arg-type]
    async with hosted(empty) as host, join(parse_target(host.invite), place) as session:
        assert await session.models() == ()
        with pytest.raises(NoModels, match="swarm serve"):
            await session.open_model()


async def test_the_store_keeps_to_the_remembered_limit(plan: Plan, place: Home) -> None:
    remember(place.settings, cache_bytes=100)
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        opened = await session.open_model()
        with pytest.raises(OSError, match="may hold 100 B, and"):
            await opened.mirror.read("model.safetensors", 0, 10)


def test_targets() -> None:
    key = KeyPair(b"\1" * 32).key
    assert parse_target("example.org").address == Address("example.org", 7300)
    assert parse_target("[::1]:80").token is None
    assert len(parse_target("example.org", "open sesame").token or b"") == 32
    public = str(Invite(Address("example.org", 1), key, key, None))
    private = str(Invite(Address("example.org", 1), key, key, b"\5" * 32))
    assert parse_target(private) == Target(Address("example.org", 1), key, key, b"\5" * 32)
    assert parse_target(public, "open sesame").token == parse_target("x", "open sesame").token
    with pytest.raises(TokenTwice):
        parse_target(private, "open sesame")
    with pytest.raises(BadInvite):
        parse_target(private[:-2])


def test_speed_is_that_of_the_last_seconds() -> None:
    now_s = 0.0
    speed = Speed(clock=lambda: now_s)
    assert speed.update(0) == 0
    for second in range(1, 11):
        now_s = float(second)
        last = speed.update(1000 * second)
    assert last == pytest.approx(1000)
    for second in range(11, 21):
        now_s = float(second)
        last = speed.update(10_000)
    assert last == 0
