"""Over a swarm: a real server of a model, a real server of the API that joined it, experts run by donors."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

from engine.chat import ChatSettings, Conversation, Finished
from engine.engine import Engine
from engine.errors import ConfigError
from engine.generate import greedy
from swarm.api.joined import Asking, JoinedSwarm
from swarm.peers.models import NothingKeptHere
from swarm.peers.network import NetworkClosed, NetworkThread
from swarm.peers.remote import RemoteExperts, RemoteStats, Rules
from swarm.peers.session import join
from swarm.peers.settings import Home
from swarm.peers.target import parse_target
from swarm.wire.holdings import ExpertLayout
from tests.api.stage import api_process, ask, says
from tests.e2e.processes import Served, serving, swarm
from tests.engine.reference import opened

TOKENS = 20


@pytest.fixture(scope="module")
def served(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server"), oracle / "olmoe") as it:
        it.running.event("executing")
        yield it


@pytest.fixture(scope="module")
def url(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("api")
    with api_process(home, served.invite, "--audit", "50%", "--slots", "8") as it:
        yield it


@pytest.fixture(scope="module")
def engine(oracle: Path) -> Engine:
    return opened(oracle / "olmoe", "auto")


def spoken(engine: Engine, text: str, count: int = TOKENS) -> str:
    """What a conversation without any network answers, greedily."""
    events = list(Conversation(engine).say(text, ChatSettings(max_tokens=count)))
    assert isinstance(events[-1], Finished)
    return events[-1].text


def test_answers_over_a_swarm_are_those_of_chat(
    url: str, served: Served, engine: Engine, oracle: Path, tmp_path: Path
) -> None:
    listed = httpx2.get(url + "/v1/models").json()["data"]
    assert [(model["id"], model["loaded"]) for model in listed] == [(served.model, False)]
    made = ask(url, says("Hello", max_tokens=TOKENS)).json()["choices"][0]["message"]["content"]
    assert made == spoken(engine, "Hello")
    chat = swarm(
        tmp_path / "chat", "chat", "--local", oracle / "olmoe", "--plain", "--temperature", "0",
        "--max-tokens", str(TOKENS),
        stdin="Hello\n",
    )  # fmt: skip
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip() == made.strip()
    state = httpx2.get(url + "/v1/swarm").json()
    assert state["link"] == "online"
    assert state["remote_calls"] > 0
    assert {peer["role"] for peer in state["peers"]} == {"bytes", "experts"}
    assert all(count == 1 for layer in state["experts"] for count in layer)
    assert ask(url, says("Hello", model="other")).status_code == 404


def test_eight_mixed_requests_over_donors_are_each_as_alone(url: str, engine: Engine) -> None:
    before = httpx2.get(url + "/v1/swarm").json()["remote_calls"]
    asked = [(f"Question {number}: " + "why? " * (7 * number), 6 + 2 * number) for number in range(8)]

    def one(number: int) -> str:
        text, count = asked[number]
        messages: Any = [{"role": "user", "content": text}]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            if number % 4 == 3:  # luck beside the others
                ask(url, says(text, temperature=1.2, seed=number, n=2, max_tokens=count))
            if number % 2:
                stream = client.chat.completions.create(
                    model="olmoe", messages=messages, temperature=0, max_tokens=count, stream=True
                )
                return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            whole = client.chat.completions.create(
                model="olmoe", messages=messages, temperature=0, max_tokens=count
            )
            return whole.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, range(8)))
    assert together == [spoken(engine, text, count) for text, count in asked]
    assert httpx2.get(url + "/v1/swarm").json()["remote_calls"] > before


def test_donors_of_an_unloaded_model_are_left(served: Served, tmp_path: Path) -> None:
    with NetworkThread() as network:
        session = network.enter(
            join, parse_target(served.invite), Home(tmp_path / "data", tmp_path / "cache")
        )
        library = JoinedSwarm(network, session, Asking(Rules.parse("off", 0.0)))
        model = library.open(served.model, None)
        assert isinstance(model.experts, RemoteExperts)
        assert model.experts.pool.remotes
        assert library.swarm()["experts"]
        model.close()
        assert library.swarm()["experts"] == ()
        with pytest.raises(NetworkClosed):
            greedy(model.model, model.experts, [1, 2, 3], 1)


def test_a_later_version_of_a_model_in_memory_is_told_once_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Network:
        """Calls at once."""

        def call(self, function: Any, *arguments: Any) -> Any:
            return function(*arguments)

    later = SimpleNamespace(name="tiny", version=2, root=b"2")

    def newer(session: object, model: object, looked_at: set[bytes]) -> object:
        if later.root in looked_at:
            return None
        looked_at.add(later.root)
        return later

    monkeypatch.setattr("swarm.api.joined.newer", newer)
    idle = SimpleNamespace(verified_bytes=0, wanted_bytes=0)
    now = SimpleNamespace(
        peers=[], web=[], online=True, problem="", tracker="", operator=b"", model="tiny", progress=idle, bytes_per_s=0
    )  # fmt: skip
    session: Any = SimpleNamespace(snapshot=lambda: now)
    library = JoinedSwarm(Network(), session, Asking(Rules.parse("off", 0.0)))  # type: ignore[arg-type]
    assert library.renewed() == ()
    loaded: Any = SimpleNamespace(info=SimpleNamespace(version=1)), SimpleNamespace()
    library._loaded["tiny"] = loaded
    (told,) = library.renewed()
    assert told.startswith("tiny has a new version, 2; this server speaks with version 1")
    assert library.renewed() == ()
    assert library.swarm()["news"] == [told]
    library._closed("tiny", loaded[1])
    assert library.swarm()["news"] == []

    def meanwhile(what: Callable[[], object]) -> Callable[..., object]:
        return lambda *arguments: (what(), later)[1]

    library._loaded["tiny"] = loaded
    monkeypatch.setattr("swarm.api.joined.newer", meanwhile(lambda: library._closed("tiny", loaded[1])))
    assert library.renewed() == ()
    assert library.swarm()["news"] == []

    again: Any = loaded[0], SimpleNamespace()
    library._loaded["tiny"] = loaded
    monkeypatch.setattr("swarm.api.joined.newer", meanwhile(lambda: library._loaded.update(tiny=again)))
    assert library.renewed() == (told,)


def test_the_donors_that_are_shown_are_those_of_the_model_loaded_last_that_is_left() -> None:
    class Shown(RemoteExperts):
        """Experts whose swarm has counted some calls."""

        def __init__(self, calls: int) -> None:
            self.stats = RemoteStats(calls=calls)
            self.pool: Any = SimpleNamespace(remotes={}, layout=ExpertLayout((1,)))

    idle = SimpleNamespace(verified_bytes=0, wanted_bytes=0)
    session: Any = SimpleNamespace(part_with=None, current=None)
    session.snapshot = lambda: SimpleNamespace(
        peers=[], web=[], online=True, problem="", tracker="", operator=b"", model=session.current, progress=idle,
        bytes_per_s=0,
    )  # fmt: skip
    network: Any = SimpleNamespace(call=lambda *_: None)
    library = JoinedSwarm(network, session, Asking(Rules.parse("off", 0.0)))
    first, second = Shown(1), Shown(2)
    loaded: Any = {"first": ("1", first), "second": ("2", second)}
    library._loaded.update(loaded)
    session.current = "2"
    assert (library.swarm()["model"], library.swarm()["calls"]) == ("2", 2)
    library._closed("second", second)
    assert (library.swarm()["model"], library.swarm()["calls"]) == ("1", 1)
    library._closed("first", first)
    assert library.swarm()["calls"] == 0


def test_what_is_told_is_of_a_model_in_memory_whatever_was_only_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(current="loaded", open_model=None)

    def opened(*_: object) -> object:
        session.current = "other"
        raise NothingKeptHere(address="there", reason="it is away")

    network: Any = SimpleNamespace(call=opened)
    library = JoinedSwarm(network, session, Asking(Rules.parse("off", 0.0)))
    loaded: Any = {"loaded": ("loaded", SimpleNamespace())}
    library._loaded.update(loaded)
    with pytest.raises(NothingKeptHere):
        library.need("other")
    assert session.current == "loaded"

    def fails(*_: object) -> object:
        raise ConfigError("odd")

    monkeypatch.setattr(library, "_opened", lambda name: SimpleNamespace(source=None))
    monkeypatch.setattr(Engine, "open", fails)
    session.current = "other"
    with pytest.raises(ConfigError):
        library.open("other", None)
    assert session.current == "loaded"
