"""A later version of a model in memory: replies under way end with the one before, the next are made with the later."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from engine.engine import Engine
from engine.errors import CheckpointError
from engine.generate import generate
from engine.reply import Reply
from engine.sampling import Sampling
from swarm.api.joined import Asking, JoinedSwarm
from swarm.api.shelf import Need, News
from swarm.peers.models import ModelInfo
from swarm.peers.network import NetworkThread
from swarm.peers.remote import Rules
from swarm.peers.session import join
from swarm.peers.settings import home as settings_home
from swarm.peers.target import parse_target
from tests.api.stage import ask, in_process, until
from tests.e2e.hosts import Plan, hosted, lasting_port
from tests.engine.reference import opened

PROMPT = [1, 5, 9, 40]
LONG = 200
HEADERS_GONE = "what config.json holds is gone"
RULES = Rules.parse("off", 0.0)


class Opening(JoinedSwarm):
    """Notes the engines, and slows down the first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.engines: list[Engine] = []

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        engine = super().open(name, experts_bytes)
        if not self.engines:
            run = engine.model.run

            def slowly(*arguments: Any) -> Any:
                time.sleep(0.02)
                return run(*arguments)

            engine.model.run = slowly  # type: ignore[method-assign]
        self.engines.append(engine)
        return engine


def completed(url: str, tokens: int) -> str:
    body = {"model": "model", "prompt": PROMPT, "temperature": 0, "max_tokens": tokens}
    made: str = ask(url, body, "/v1/completions").json()["choices"][0]["text"]
    return made


def expected(folder: Path, tokens: int) -> str:
    """What the model in a folder answers, alone and here."""
    engine = opened(folder, "auto")
    reply = Reply(list(PROMPT), engine.model.new_state(), Sampling(), engine.stop_ids, max_tokens=tokens)
    list(generate(engine.model, engine.experts, reply))
    return engine.tokenizer.decode(reply.generated)


def running(url: str) -> int:
    return int(httpx2.get(url + "/health", timeout=20).json()["running"])


def in_memory(url: str) -> float:
    lines = httpx2.get(url + "/metrics", timeout=20).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("swarm_models_loaded"))


def test_replies_under_way_end_with_their_version_and_the_next_use_the_later(
    oracle: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.api.renewal.LOOK_S", 0.05)
    folder = Path(shutil.copytree(oracle / "olmoe", tmp_path / "model"))
    plan = Plan(folder, tmp_path / "host", port=lasting_port())
    told: list[News] = []
    with NetworkThread() as network, NetworkThread() as first, ThreadPoolExecutor(1) as pool:
        session = network.enter(join, parse_target(first.enter(hosted, plan).invite), settings_home())
        network.call(network.call(session.open_model).fetch_all)
        library = Opening(network, session, Asking(RULES))
        with in_process(library, tell=told.append) as url:
            before = completed(url, 8)
            under_way = pool.submit(completed, url, LONG)
            until(lambda: running(url) == 1)
            first.close()
            shutil.rmtree(folder)
            shutil.copytree(oracle / "qwen3_moe", folder)
            with NetworkThread() as second:
                second.enter(hosted, plan)
                until(lambda: bool(told))
                after = completed(url, 8)
                assert not under_way.done()
                assert in_memory(url) == 2
                assert under_way.result(60) == expected(oracle / "olmoe", LONG)
                until(lambda: in_memory(url) == 1)
                assert completed(url, 8) == after == expected(oracle / "qwen3_moe", 8)
    assert before == expected(oracle / "olmoe", 8) != after
    assert len(library.engines) == 2
    assert [(news.name, news.version, news.usable) for news in told] == [("model", 2, True)]


class Calling:
    """A network thread that is the caller's."""

    def call(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


class Later(JoinedSwarm):
    """A library whose later version cannot be read while there is a `problem`."""

    problem = HEADERS_GONE

    def need(self, name: str) -> Need:
        if self.problem:
            raise CheckpointError(self.problem)
        return Need(1, 1)


def test_a_later_version_that_cannot_be_used_is_told_once_and_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def newer(session: object, model: object, looked_at: set[bytes]) -> ModelInfo | None:
        return None if b"2" in looked_at or looked_at.add(b"2") else infos[0]  # type: ignore[func-returns-value]

    monkeypatch.setattr("swarm.api.joined.newer", newer)
    infos = [ModelInfo("tiny", 2, b"2", b"", 10, chunks=4, holders=1, covered_chunks=3)]
    idle = SimpleNamespace(verified_bytes=0, wanted_bytes=0)
    now = SimpleNamespace(
        peers=[], web=[], online=True, problem="", tracker="", operator=b"", model="tiny", progress=idle, bytes_per_s=0
    )  # fmt: skip
    session: Any = SimpleNamespace(online=True, models=lambda: infos, snapshot=lambda: now)
    library = Later(Calling(), session, Asking(RULES))  # type: ignore[arg-type]
    assert library.renewed() == ()
    library._loaded["tiny"] = SimpleNamespace(info=SimpleNamespace(name="tiny", version=1))  # type: ignore[assignment]

    for problem in ("25 % of its bytes are held by no peer", HEADERS_GONE):
        (told,) = library.renewed()
        assert (told.usable, told.version) == (False, 2)
        assert f"cannot be used yet: {problem}. Replies are still made with version 1" in told.text
        assert library.renewed() == ()
        infos[0] = replace(infos[0], covered_chunks=4)
    library.problem = ""
    (told,) = library.renewed()
    assert told.usable
    assert "version, 2, which new replies are made with" in told.text
    assert library.renewed() == ()
    assert library.swarm()["news"] == [told.text]
