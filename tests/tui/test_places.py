"""The real backend: a local checkpoint, and the same one over a swarm, to the same answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.errors import ConfigError
from swarm.peers.models import PeerView
from swarm.peers.session import Session
from swarm.wire.keys import PeerKey
from swarm.wire.rpc import Unreachable
from tests.e2e.hosts import hosting
from tui.backend import Ask, Donation, Turn
from tui.messages import (
    Connected,
    EndReason,
    Event,
    Failed,
    Finished,
    Notice,
    Phase,
    Progress,
    Ready,
    Reasoning,
    Text,
)
from tui.options import Options, Sampling
from tui.places import PlaceBackend
from tui.remote import SwarmPlace, fingerprint, numbered
from tui.speaker import chosen
from tui.views import DonationView, Role, SwarmView

ASK = Ask((Turn("user", "Hello"),), Sampling(temperature=0.0, max_tokens=6))


def raising(error: Exception) -> Callable[..., object]:
    """What raises it."""

    def fails(*_: object, **__: object) -> object:
        raise error

    return fails


def text_of(events: list[Event]) -> str:
    """What was said."""
    return "".join(event.text for event in events if isinstance(event, Text | Reasoning))


def last(events: Iterator[Event], kind: type[Event]) -> list[Event]:
    """All events, of which the last must be of a kind."""
    found = list(events)
    assert isinstance(found[-1], kind), found[-3:]
    return found


@pytest.fixture
def model(oracle: Path) -> Path:
    """A tiny checkpoint."""
    return oracle / "olmoe"


def test_local_and_swarm_give_the_same_answer_and_the_swarm_may_go(
    home: Path, model: Path, tmp_path: Path
) -> None:
    local = PlaceBackend(Options(home=home, local=model))
    connected = last(local.connect(""), Connected)[-1]
    assert isinstance(connected, Connected)
    (view,) = connected.models
    assert (view.name, view.layers, view.experts, view.format) == ("olmoe", 4, 8, "bf16")
    last(local.open("olmoe"), Ready)
    said = last(local.ask(ASK), Finished)
    assert local.snapshot().link == "local"
    assert local.live().reply_tokens == 6
    assert local.waiting() is None
    for impossible in (lambda: local.tune("hedge", "1"), lambda: local.donate(Donation("disk", 1))):
        with pytest.raises(ValueError, match="local directory"):
            impossible()
    again = last(
        local.ask(replace(ASK, turns=(*ASK.turns, Turn("assistant", "x"), Turn("user", "y")))), Finished
    )[-1]
    assert isinstance(again, Finished)
    assert again.stats.cached_tokens > 10
    local.close()

    with hosting(model, tmp_path) as host:
        swarm = PlaceBackend(Options(home=home))
        joined = last(swarm.connect(host.invite), Connected)[-1]
        assert isinstance(joined, Connected)
        assert joined.known
        assert joined.operator == fingerprint(host.publication.signed.signer)
        (name,) = [item.name for item in joined.models]
        ready = last(swarm.open(name), Ready)[-1]
        assert isinstance(ready, Ready)
        assert ready.model.layers == 4
        assert text_of(last(swarm.ask(ASK), Finished)) == text_of(said)
        view_now = swarm.snapshot()
        assert view_now.link == "online"
        assert len(view_now.peers) == 1
        assert view_now.ranges == (1.0,) * len(view_now.ranges)
        assert swarm.models()[0].open
        assert (swarm.tune("drafts", "OFF"), swarm.tune("drafts", "on")) == ("off", "on")
        with pytest.raises(ValueError, match="neither on nor off"):
            swarm.tune("drafts", "perhaps")
    assert text_of(last(swarm.ask(ASK), Finished)) == text_of(said)
    swarm.close()

    alone = PlaceBackend(Options(home=home))
    offline = last(alone.connect(host.invite), Connected)[-1]
    assert isinstance(offline, Connected)
    last(alone.open(name), Ready)
    assert alone.snapshot().link == "offline"
    assert text_of(last(alone.ask(ASK), Finished)) == text_of(said)
    alone.close()

    hermit = PlaceBackend(Options(home=home, offline=True))
    told = last(hermit.connect(host.invite), Connected)
    assert not [event for event in told if isinstance(event, Progress)]  # it connects to nobody
    hermit.close()
    assert not [thread for thread in threading.enumerate() if thread.name in ("network", "swarm-open")]


def test_experts_that_do_not_fit_are_counted_and_their_cache_s_trouble_is_told_once(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.packed_cache.LEAST_FREE_BYTES", 1 << 62)
    local = PlaceBackend(Options(home=home, local=model, expert_ram_bytes=150_000))
    last(local.connect(""), Connected)
    last(local.open("olmoe"), Ready)
    first, second = last(local.ask(ASK), Finished), last(local.ask(ASK), Finished)
    told = [event.text for event in (*first, *second) if isinstance(event, Notice)]
    assert len(told) == 1
    assert "the disk is nearly full" in told[0]
    done = first[-1]
    assert isinstance(done, Finished)
    assert done.stats.expert_misses > 0
    assert done.stats.expert_bytes > 0
    local.close()


def test_a_reply_is_stopped_and_nothing_is_asked_of_nobody(home: Path, model: Path) -> None:
    backend = PlaceBackend(Options(home=home))
    assert isinstance(last(backend.ask(ASK), Failed)[-1], Failed)
    assert isinstance(last(backend.open("x"), Failed)[-1], Failed)
    assert backend.models() == ()
    with pytest.raises(ValueError, match="no swarm yet"):
        backend.tune("hedge", "1")
    last(backend.connect(str(model)), Connected)
    assert "Only olmoe" in failure(backend.open("other"))
    last(backend.open("olmoe"), Ready)
    events = backend.ask(Ask(ASK.turns, Sampling(max_tokens=400)))
    for event in events:
        if isinstance(event, Progress) and event.phase is Phase.DECODING:
            backend.stop()
            break
    ended = last(events, Finished)[-1]
    assert isinstance(ended, Finished)
    assert ended.reason is EndReason.STOPPED
    backend.close()
    backend.close()


def test_a_model_that_is_refused_changes_nothing_of_the_one_in_use(
    home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    close = Engine.close
    monkeypatch.setattr(Engine, "close", lambda engine: (closed.append(engine), close(engine)))

    async def refuses(*_: object) -> None:
        raise Unreachable(address="nowhere", reason="refused")

    with hosting(model, tmp_path) as host, closing(PlaceBackend(Options(home=home))) as backend:
        last(backend.connect(host.invite), Connected)
        last(backend.open("model"), Ready)
        place = backend._place
        assert isinstance(place, SwarmPlace)
        session = place._session
        assert session is not None
        donors, current = place._donors, place._current
        said = text_of(last(backend.ask(ASK), Finished))
        for patch, told in (
            ((Engine, "can_chat", False), "base model"),
            ((Engine, "has_tokenizer", False), "has no tokenizer"),
            ((Session, "experts", refuses), "refused"),
            ((Engine, "open", raising(ConfigError("odd"))), "odd"),
        ):
            session._open.clear()  # so that it is another one
            with monkeypatch.context() as patched:
                patched.setattr(*patch)
                assert told in failure(backend.open("model"))
            assert session.current is current
        assert len(closed) == 3  # what was opened to be refused
        assert (place._donors, place._current) == (donors, current)
        assert text_of(last(backend.ask(ASK), Finished)) == said


def test_a_model_on_its_way_is_shown_by_its_own_chunks(
    home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SwarmView] = []
    wishes: list[str] = []

    def meanwhile(*_: object, **__: object) -> object:
        seen.append(backend.snapshot())
        backend.donate(Donation("disk", 1))
        raise ConfigError("odd")

    monkeypatch.setattr(Engine, "open", meanwhile)
    monkeypatch.setattr(
        "tui.remote.Lending.want", lambda _, wish, model="": (wishes.append(model), DonationView())[1]
    )
    with hosting(model, tmp_path) as host, closing(PlaceBackend(Options(home=home))) as backend:
        last(backend.connect(host.invite), Connected)
        assert "odd" in failure(backend.open("model"))
    (view,) = seen
    assert view.model == "model"
    assert view.ranges
    assert [peer.held for peer in view.peers] == ["everything"]
    assert wishes[0] == "model"


def test_the_swarm_is_left_before_the_model_is_closed(
    home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for what, name in ((SwarmPlace, "swarm"), (Engine, "model")):
        close = what.close
        monkeypatch.setattr(
            what, "close", lambda self, close=close, name=name: (order.append(name), close(self))
        )
    backend = PlaceBackend(Options(home=home))
    with hosting(model, tmp_path) as host:
        last(backend.connect(host.invite), Connected)
        last(backend.open("model"), Ready)
        backend.close()
    assert order == ["swarm", "model"]


def failure(events: Iterator[Event]) -> str:
    """The message of a failure."""
    event = list(events)[-1]
    assert isinstance(event, Failed)
    return event.message


def test_what_cannot_be_opened_is_named(home: Path, tmp_path: Path) -> None:
    backend = PlaceBackend(Options(home=home))
    assert "no/such/dir" in failure(backend.connect("/no/such/dir"))
    (tmp_path / "empty").mkdir()
    assert "config.json" in failure(backend.connect(str(tmp_path / "empty")))
    assert "invite" in failure(backend.connect("swarm://nonsense"))
    away = list(backend.connect("127.0.0.1:9"))[-1]
    assert isinstance(away, Failed)
    assert away.offline
    backend.close()


def test_the_models_own_sampling_is_the_default_and_the_user_wins() -> None:
    assert chosen(Sampling(), {}).temperature == 0.0
    own = chosen(Sampling(), {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8})
    assert (own.temperature, own.top_k, own.top_p) == (0.7, 20, 0.8)
    with pytest.raises(ConfigError, match="temperature is 'odd'"):
        chosen(Sampling(), {"do_sample": True, "temperature": "odd"})
    mine = chosen(
        Sampling(temperature=0.1, seed=7, max_tokens=3), {"do_sample": True, "repetition_penalty": 1.1}
    )
    assert (mine.temperature, mine.seed, mine.repeat_penalty) == (0.1, 7, 1.1)
    assert chosen(Sampling(), {}).seed != chosen(Sampling(), {}).seed


@pytest.mark.parametrize(
    ("chunks", "lent", "role", "held"),
    [
        (10, False, Role.MAINTAINER, "everything"),
        (10, True, Role.DISK, "everything"),
        (4, True, Role.DISK, "40 %"),
        (4, False, Role.MAINTAINER, "40 %"),  # one whose files changed, or are still on their way
    ],
)
def test_a_donor_of_disk_is_called_one_whatever_it_holds(
    chunks: int, lent: bool, role: Role, held: str
) -> None:
    peer = PeerView(PeerKey(bytes(32)), "", chunks, lent, 0, 0, 0, banned=False, trouble="")
    seen = numbered(3, peer, 10)
    assert (seen.number, seen.role, seen.held) == (3, role, held)


def test_fingerprints_are_read_in_groups() -> None:
    assert fingerprint(bytes(range(32))) == "0001 0203 0405 0607"
