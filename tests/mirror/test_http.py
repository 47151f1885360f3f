"""Web sources against a real local server: Range, redirects, throttling, errors, lies."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from mirror.cas import Store
from mirror.errors import ChunkUnavailable, ReplicaBusy
from mirror.fetch import open_mirror
from mirror.flight import Patience
from mirror.http import WithWeb, _retry_after_s, address_of, web_replicas
from mirror.tree import Tree
from swarm.trust.sources import parse_source
from tests.mirror.fakes import Giver, Givers, flip, make_model, real_tree
from tests.mirror.web import Web, web_server

MODEL = make_model({"config.json": 300, "weights/a b.bin": (2 << 20) + 77})
TREE: Tree = real_tree(MODEL)


@pytest.fixture
def web() -> Iterator[tuple[str, type[Web]]]:
    with web_server(MODEL) as served:
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


async def read_all(store: Store, source: str) -> None:
    async with web_replicas([parse_source(source)]) as web, open_mirror(TREE, store, WithWeb(web)) as mirror:
        with trio.fail_after(60):
            for path, data in MODEL.items():
                assert await mirror.read(path, 0, len(data)) == data


async def test_a_whole_model_from_the_web(store: Store, web: tuple[str, type[Web]]) -> None:
    await read_all(store, web[0])
    assert len(web[1].seen) == 4
    assert "/repo/weights/a%20b.bin" in web[1].seen


async def test_a_source_with_a_query_keeps_it(store: Store, web: tuple[str, type[Web]]) -> None:
    await read_all(store, web[0] + "?signature=a%2Fb")
    assert web[1].seen[0] == "/repo/config.json?signature=a%2Fb"


async def test_redirects_are_followed_but_not_for_ever(store: Store, web: tuple[str, type[Web]]) -> None:
    def elsewhere(handler: Web) -> bool:
        if handler.path.startswith("/repo/"):
            return False
        handler.answer(302, headers={"Location": handler.path.replace("/moved/", "/repo/")})
        return True

    web[1].trouble = staticmethod(elsewhere)
    await read_all(store, web[0].replace("/repo", "/moved"))
    web[1].trouble = staticmethod(lambda handler: handler.answer(302, headers={"Location": "/round"}) or True)
    async with web_replicas([parse_source(web[0])]) as found:
        with pytest.raises(Exception, match="TooManyRedirects"):
            await found[0].fetch(TREE.chunk(0))


async def test_throttling_is_obeyed(store: Store, web: tuple[str, type[Web]]) -> None:
    refusals = [429, 503]

    def throttle(handler: Web) -> bool:
        if not refusals:
            return False
        handler.answer(refusals.pop(), headers={"Retry-After": "0"})
        return True

    web[1].trouble = staticmethod(throttle)
    await read_all(store, web[0])
    assert not refusals


async def test_a_retry_after_is_passed_on(web: tuple[str, type[Web]]) -> None:
    web[1].trouble = staticmethod(lambda handler: handler.answer(429, headers={"Retry-After": "7"}) or True)
    async with web_replicas([parse_source(web[0])]) as found:
        with pytest.raises(ReplicaBusy) as refusal:
            await found[0].fetch(TREE.chunk(0))
    assert refusal.value.retry_after_s == 7


def test_retry_after_in_all_its_forms() -> None:
    assert _retry_after_s(None) == _retry_after_s("soon") == _retry_after_s("nan") == 5
    assert _retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert _retry_after_s("1e99") == _retry_after_s("Wed, 21 Oct 9999 07:28:00 GMT") == 3600
    assert (
        _retry_after_s("Wed, 21 Oct 99999 07:28:00 GMT") == _retry_after_s("1 Jan 2015 0:0:0 -999999999") == 5
    )


def whole_files(handler: Web) -> bool:
    handler.answer(200, MODEL["weights/a b.bin"])
    return True


def other_range(handler: Web) -> bool:
    handler.answer(206, bytes(100), {"Content-Range": "bytes 5-104/1000"})
    return True


def cut_short(handler: Web) -> bool:
    handler.answer(206, bytes(100), {"Content-Range": "bytes 1048576-2097151/9", "Content-Length": "1048576"})
    handler.close_connection = True
    return True


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (lambda handler: handler.answer(404) or True, "does not have it"),
        (lambda handler: handler.answer(500) or True, "HTTP status 500"),
        (whole_files, "does not know Range"),
        (other_range, "another range"),
        (cut_short, "failed: .*Protocol"),
    ],
)
async def test_trouble_is_named(
    web: tuple[str, type[Web]], trouble: Callable[[Web], bool], reason: str, tmp_path: Path
) -> None:
    web[1].trouble = staticmethod(trouble)
    with Store(tmp_path) as store:
        async with (
            web_replicas([parse_source(web[0])]) as found,
            open_mirror(TREE, store, WithWeb(found), patience=Patience(0.1, 0.1)) as mirror,
        ):
            with pytest.raises(ChunkUnavailable, match=reason):
                await mirror.read("weights/a b.bin", 1 << 20, 100)
        assert not list(store.kept())


async def test_a_server_without_range_can_give_the_first_chunk(web: tuple[str, type[Web]]) -> None:
    web[1].trouble = staticmethod(whole_files)
    async with web_replicas([parse_source(web[0])]) as found:
        data = await found[0].fetch(next(TREE.chunks("weights/a b.bin")))
    assert data == MODEL["weights/a b.bin"][: 1 << 20]


async def test_wrong_and_endless_bodies_are_refused(store: Store, web: tuple[str, type[Web]]) -> None:
    def lie(handler: Web) -> bool:
        first = handler.headers["Range"].removeprefix("bytes=").split("-")[0]
        handler.answer(206, bytes(5 << 20), {"Content-Range": f"bytes {first}-/9"})
        return True

    web[1].trouble = staticmethod(lie)
    async with web_replicas([parse_source(web[0])]) as found:
        assert len(await found[0].fetch(TREE.chunk(0))) == 301
        async with open_mirror(TREE, store, WithWeb(found)) as mirror:
            with pytest.raises(ChunkUnavailable, match=r"127\.0\.0\.1 sent wrong bytes"):
                await mirror.read("config.json", 0, 1)


@pytest.mark.parametrize(("first", "from_web"), [("", 0), ("first+", 4)])
async def test_the_web_is_the_last_or_the_first_resort(
    store: Store, web: tuple[str, type[Web]], first: str, from_web: int
) -> None:
    peer = Giver("peer", MODEL, seconds=0)
    async with (
        web_replicas([parse_source(first + web[0])]) as found,
        open_mirror(TREE, store, WithWeb(found, Givers(peer))) as mirror,
    ):
        for path, data in MODEL.items():
            assert await mirror.read(path, 0, len(data)) == data
    assert (len(web[1].seen), peer.asked) == (from_web, 4 - from_web)


async def test_peers_are_looked_for_before_the_last_resort_is_asked(
    store: Store, web: tuple[str, type[Web]], tmp_path: Path
) -> None:
    peer, givers = Giver("peer", MODEL, seconds=0), Givers()
    async with (
        web_replicas([parse_source(web[0])]) as found,
        open_mirror(TREE, store, WithWeb(found, givers)) as mirror,
    ):
        assert await mirror.read("config.json", 0, 1)
        assert (givers.refreshed, len(web[1].seen)) == (1, 1)
        givers.found_later = [peer]  # too soon to look again
        await mirror.read("weights/a b.bin", 0, 1)
        assert (givers.refreshed, len(web[1].seen)) == (1, 2)
    with Store(tmp_path / "another") as empty:
        async with (
            web_replicas([parse_source(web[0])]) as found,
            open_mirror(TREE, empty, WithWeb(found, givers)) as mirror,
        ):
            await mirror.read("config.json", 0, 1)
    assert (givers.refreshed, len(web[1].seen), peer.asked) == (2, 2, 1)


async def test_the_web_steps_in_for_lying_peers(store: Store, web: tuple[str, type[Web]]) -> None:
    givers = Givers(Giver("liar", MODEL, flip, seconds=0))
    async with (
        web_replicas([parse_source(web[0])]) as found,
        open_mirror(TREE, store, WithWeb(found, givers)) as mirror,
    ):
        for path, data in MODEL.items():
            assert await mirror.read(path, 0, len(data)) == data
    assert set(givers.accused) == {"liar"}


def test_where_a_file_is() -> None:
    hub = "https://huggingface.co/org/model/resolve/main"
    assert address_of(hub, "a/b.bin") == hub + "/a/b.bin"
    assert address_of(hub + "/", "a b") == hub + "/a%20b"
    assert address_of("https://x/{path}?k=1", "a?") == "https://x/a%3F?k=1"
    signed = "https://bucket/dir/model.safetensors?X-Amz-Signature=1"
    assert address_of(signed, "model.safetensors") == signed
