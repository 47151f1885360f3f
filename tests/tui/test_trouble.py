"""What fails beside a reply: it is said, and the application goes on."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from swarm.errors import SwarmError
from tests.tui.fakes import MODELS, FakeBackend, demo_swarm
from tests.tui.stage import idle, play, say, screen_text, shown, until
from tests.tui.test_lines import chat
from tui.app import SwarmApp
from tui.backend import Ask, Donation, Turn
from tui.local import LocalPlace
from tui.messages import Connected, Event, Failed, Finished
from tui.options import Options, Sampling
from tui.places import PlaceBackend
from tui.problems import NotThere
from tui.screens.welcome import WelcomeScreen
from tui.views import DonationView, ModelView


class Busy(SwarmError):
    """The tracker is busy; ask again."""


class Troubled(FakeBackend):
    """Its short calls raise `trouble`."""

    trouble: Exception = Busy()

    def models(self) -> tuple[ModelView, ...]:
        raise self.trouble

    def donate(self, wish: Donation) -> DonationView:
        raise self.trouble


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be made any more."""
    opened = os.open

    def full(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr("os.open", full)


@pytest.mark.parametrize("line", ["/model", "/donate compute 1GB"])
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Busy(), "✗ The tracker is busy; ask again."),
        (NotThere("The swarm was left."), "✗ The swarm was left."),
        (KeyError("oops"), "✗ Swarm made a mistake: KeyError"),
    ],
)
def test_a_command_that_fails_is_no_end(home: Path, line: str, trouble: Exception, words: str) -> None:
    backend = Troubled()
    backend.trouble = trouble

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, line)
        await until(pilot, lambda: words in shown(app))
        await say(pilot, app, "Hi")
        await idle(pilot, app)
        assert "You said: Hi" in shown(app)

    play(home, scene, backend)


def test_nor_is_it_line_by_line(home: Path) -> None:
    code, output, errors = chat(home, "/model", "/donate compute 1GB", "Hi", backend=Troubled())
    assert (code, output) == (0, "You said: Hi\n")
    assert errors.count("swarm: The tracker is busy; ask again.") == 2


def test_a_full_disk_costs_what_would_be_kept_and_nothing_else(home: Path, full_disk: None) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "Hi")
        await until(pilot, lambda: "Not kept in the history" in screen_text(app))
        await idle(pilot, app)
        assert "You said: Hi" in shown(app)
        assert "The conversation could not be saved" in shown(app)
        assert "the disk is full; free some space" in shown(app)
        await pilot.press("up")
        assert app.chat.editor.text == "Hi"
        await say(pilot, app, "/set theme light")
        assert "light" in app.theme
        assert "That holds until you leave; it could not be remembered" in shown(app)
        await say(pilot, app, "/donate compute 1GB")
        await until(pilot, lambda: bool(fake.donated))

    play(home, scene)


def test_the_first_run_is_possible_on_a_full_disk(home: Path, full_disk: None) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        for keys, then in ((("x", "enter"), "Operator"), (("enter",), "take part")):
            await until(pilot, lambda: isinstance(app.screen, WelcomeScreen))
            await pilot.press(*keys)
            await until(pilot, lambda then=then: then in screen_text(app))  # type: ignore[misc]
            await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.controller.model == MODELS[0].name)
        assert "This is asked again the next time" in shown(app)

    play(home, scene, target=None, model=None, ready=False)


def test_answers_that_cannot_be_read_are_named_and_asked_again(home: Path) -> None:
    (home / "settings.json").write_text("garbage{")

    async def first(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await until(pilot, lambda: "delete it to be asked again" in " ".join(screen_text(app).split()))
        await pilot.press("x", "enter")
        await until(pilot, lambda: fake.joined == ["x"])

    play(home, first, target=None, model=None, ready=False)

    async def named(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        assert app.chat.controller.model == MODELS[0].name

    play(home, named, FakeBackend(listed=MODELS[:1]), model=None)


def test_conversations_that_cannot_be_kept_hold_up_no_reply(home: Path) -> None:
    (home / "conversations").write_text("not a directory")

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        for text in ("one", "two"):
            await say(pilot, app, text)
            await idle(pilot, app)
            assert f"You said: {text}" in shown(app)
        assert "The conversation could not be saved" in shown(app)
        await say(pilot, app, "/load")
        await pilot.press("escape")
        await say(pilot, app, "/export ~nobody-of-that-name/x.md")
        assert "~nobody-of-that-name/x.md: no such file or directory" in shown(app)

    play(home, scene)


TOO_LONG = Failed("the conversation has 9,000 tokens, the model's context 4,096", too_long=True)


def test_what_is_too_long_for_the_model_is_not_to_be_asked_again_as_it_is(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "Hi")
        await idle(pilot, app)
        assert "✗ the conversation has 9,000 tokens" in shown(app)
        assert "/new begins another conversation, /edit asks shorter" in shown(app)
        assert "/retry" not in shown(app)

    play(home, scene, FakeBackend([[TOO_LONG]]))


def test_nor_line_by_line_where_somebody_types(home: Path) -> None:
    assert "/edit asks shorter" in chat(home, "Hi", backend=FakeBackend([[TOO_LONG]]), typed=True)[2]
    assert "/edit" not in chat(home, "Hi", backend=FakeBackend([[TOO_LONG]]))[2]


def test_a_conversation_beyond_the_models_context_fails_as_too_long(home: Path, oracle: Path) -> None:
    backend = PlaceBackend(Options(home=home, local=oracle / "olmoe"))
    for events in (backend.connect(""), backend.open("olmoe")):
        list(events)
    short = Ask((Turn("user", "Hi"),), Sampling(temperature=0.0, max_tokens=1))
    long = replace(short, turns=(Turn("user", "Hi " * 200_000),))
    failed = list(backend.ask(long))[-1]
    assert isinstance(failed, Failed)
    assert failed.too_long
    assert isinstance(list(backend.ask(short))[-1], Finished)
    backend.close()


@pytest.mark.parametrize("before", ["online", "offline"])
def test_what_could_not_be_lent_is_lent_when_the_swarm_is_back(home: Path, before: str) -> None:
    failed = DonationView("disk", "failed", 5 * 10**9, 0, detail="the tracker cannot be reached")
    backend = FakeBackend(view=replace(demo_swarm(), link=before, donation=DonationView()))

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        fake.view = replace(fake.view, link="offline", donation=failed)
        await until(pilot, lambda: "✗ Lending 5.0 GB of disk · failed" in shown(app))
        await until(pilot, lambda: app.chat.status.swarm.link == "offline")
        assert not fake.donated
        fake.view = replace(fake.view, link="online")
        await until(pilot, lambda: fake.donated == [Donation("disk", 5 * 10**9)])
        await until(pilot, lambda: "· Lending 5.0 GB of disk · running" in shown(app))

    play(home, scene, backend)


@pytest.mark.parametrize("fault", [IndexError("list index out of range"), RecursionError()])
def test_a_fault_while_a_model_opens_ends_the_waiting(
    home: Path, oracle: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(LocalPlace, "open", broken)
    backend = PlaceBackend(Options(home=home, local=oracle / "olmoe"))
    assert isinstance(list(backend.connect(""))[-1], Connected)
    with pytest.raises(type(fault)):
        list(backend.open("olmoe"))
    monkeypatch.undo()

    def small(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(LocalPlace, "open", small)
    events: list[Event] = list(backend.open("olmoe"))
    assert isinstance(events[-1], Failed)
    assert "too little memory" in events[-1].message
    backend.close()
