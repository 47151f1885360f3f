"""A model whose manifest names a web server: fetched there when no peer has it, or before peers are asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.errors import ChunkUnavailable
from swarm.demo.generated import write_checkpoint
from swarm.peers.session import join
from swarm.peers.settings import Home, remember
from swarm.peers.target import parse_target
from swarm.peers.websources import useless_sources
from tests.e2e.hosts import Plan, hosted
from tests.mirror.web import Web, web_server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def web(model: Path) -> Iterator[tuple[str, type[Web]]]:
    with web_server({file.name: file.read_bytes() for file in model.iterdir()}) as served:
        yield served


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path / "data", tmp_path / "cache")


def size_of(model: Path) -> int:
    return sum(file.stat().st_size for file in model.iterdir())


async def read_all(plan: Plan, place: Home) -> tuple[int, int]:
    """Reads all of the model in a session of its own; the bytes that came from the web, and from peers."""
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        opened = await session.open_model()
        for file in plan.model.iterdir():
            assert bytes(await opened.mirror.read(file.name, 0, file.stat().st_size)) == file.read_bytes()
        seen = session.snapshot()
    return sum(web.given_bytes for web in seen.web), sum(peer.given_bytes for peer in seen.peers)


@pytest.mark.parametrize("first", [False, True])
async def test_peers_or_the_web_give_all_of_it(
    model: Path, web: tuple[str, type[Web]], place: Home, tmp_path: Path, first: bool
) -> None:
    size = size_of(model)
    plan = Plan(model, tmp_path / "host", sources=("first+" * first + web[0],))
    assert await read_all(plan, place) == ((size, 0) if first else (0, size))


async def test_the_web_goes_on_when_every_peer_is_gone(
    model: Path, web: tuple[str, type[Web]], place: Home, tmp_path: Path
) -> None:
    plan = Plan(model, tmp_path / "host", sources=(web[0],))
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        await session.open_model()
    async with join(parse_target(host.invite), place) as session:
        assert not session.online
        opened = await session.open_model("model")
        content = (model / "model.safetensors").read_bytes()
        assert bytes(await opened.mirror.read("model.safetensors", 0, len(content))) == content


async def test_the_web_is_left_alone_when_it_is_off(
    model: Path, web: tuple[str, type[Web]], place: Home, tmp_path: Path
) -> None:
    remember(place.settings, web="off")
    given = await read_all(Plan(model, tmp_path / "host", sources=("first+" + web[0],)), place)
    assert given[0] == 0
    assert web[1].seen == []


async def test_wrong_bytes_of_the_web_are_replaced_by_those_of_peers(
    model: Path, web: tuple[str, type[Web]], place: Home, tmp_path: Path
) -> None:
    web[1].files = {name: bytes(len(data)) for name, data in web[1].files.items()}
    from_web, from_peers = await read_all(Plan(model, tmp_path / "host", sources=("first+" + web[0],)), place)
    assert from_peers == size_of(model)
    assert from_web > 0


async def test_the_operator_is_told_of_useless_sources(
    model: Path, web: tuple[str, type[Web]], tmp_path: Path
) -> None:
    one_file = f"{web[0]}/model.safetensors"
    with web_server({name: bytes(len(data)) for name, data in web[1].files.items()}) as (zeros, _):
        plan = Plan(model, tmp_path / "host", sources=(web[0], one_file, zeros, web[0] + "/elsewhere"))
        async with hosted(plan) as host:
            found = await useless_sources(host.publication.signed.manifest)
    assert [address for address, _ in found] == [zeros, web[0] + "/elsewhere"]
    assert "gives other bytes" in found[0][1]
    assert "HTTP status 404" in found[1][1] or "does not have" in found[1][1]


async def test_a_source_that_nothing_answers_at_is_named(model: Path, place: Home, tmp_path: Path) -> None:
    plan = Plan(model, tmp_path / "host", sources=("http://localhost:1/x",))
    async with hosted(plan) as host, join(parse_target(host.invite), place) as session:
        await session.open_model()
    async with join(parse_target(host.invite), place) as session:
        opened = await session.open_model("model")
        with pytest.raises(ChunkUnavailable, match="localhost failed: "):
            await opened.mirror.read("config.json", 0, 1)
