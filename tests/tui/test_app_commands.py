"""Commands in the application: what each does, shows and changes."""

from __future__ import annotations

import json
from pathlib import Path

from textual.pilot import Pilot

from tests.tui.fakes import MODELS, STATS, FakeBackend
from tests.tui.stage import idle, play, say, screen_text, shown, until
from tui.app import SwarmApp
from tui.conversation import Shelf
from tui.messages import (
    EndReason,
    Finished,
    Text,
)
from tui.options import Sampling
from tui.screens.conversations import ConversationsScreen
from tui.screens.help import HelpScreen
from tui.screens.models import ModelsScreen
from tui.screens.swarm import SwarmScreen
from tui.widgets.find import FindBar
from tui.widgets.line import Completions


def test_retry_edit_and_new(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/retry")
        assert "no question to answer" in shown(app)
        await say(pilot, app, "/edit")
        assert "no question to edit" in shown(app)
        await say(pilot, app, "one")
        await idle(pilot, app)
        await pilot.press("ctrl+r")
        await idle(pilot, app)
        assert [len(ask.turns) for ask in fake.asked] == [1, 1]
        assert shown(app).count("You said: one") == 1
        await pilot.press("ctrl+e")
        await pilot.pause()
        assert app.chat.editor.text == "one"
        assert app.chat.controller.conversation.turns == []
        app.chat.editor.put("two")
        await pilot.press("enter")
        await idle(pilot, app)
        assert [turn.text for turn in fake.asked[-1].turns] == ["two"]
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "two" not in shown(app)
        await say(pilot, app, "three")
        await idle(pilot, app)
        assert [turn.text for turn in fake.asked[-1].turns] == ["three"]

    play(home, scene)
    assert len(Shelf(home / "conversations").names()) == 2


def test_save_load_and_export(home: Path, tmp_path: Path) -> None:
    async def first(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/save x")
        assert "nothing to save" in shown(app)
        await say(pilot, app, "/system Be brief.")
        await say(pilot, app, "remember me")
        await idle(pilot, app)
        await say(pilot, app, "/save my talk")
        await say(pilot, app, f"/export {tmp_path}/talk.json")
        await say(pilot, app, f"/export {tmp_path}/talk.json")
        assert "exists already" in shown(app)
        await say(pilot, app, f"/export {tmp_path}/no/such/dir.md")
        assert "did not work" in shown(app)
        await say(pilot, app, f"/export {tmp_path}/talk.pdf")
        assert "Write /export FILE" in shown(app)
        assert not (tmp_path / "talk.pdf").exists()
        await say(pilot, app, "/export")
        assert "Write /export FILE" in shown(app)

    async def second(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/load nothing")
        assert "no saved conversation nothing" in shown(app)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ConversationsScreen))
        await pilot.press(*"talk", "enter")
        await until(pilot, lambda: app.screen is app.chat)
        assert "You said: remember me" in shown(app)
        await say(pilot, app, "go on")
        await idle(pilot, app)
        texts = [turn.text for turn in fake.asked[-1].turns]
        assert texts == ["Be brief.", "remember me", "You said: remember me", "go on"]

    play(home, first)
    assert Shelf(home / "conversations").names() == ["my talk"]
    assert json.loads((tmp_path / "talk.json").read_text())["messages"][0]["content"] == "Be brief."
    play(home, second)
    assert len(Shelf(home / "conversations").load("my talk").turns) == 4


def test_settings_of_sampling_network_and_looks(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        for line in (
            "/set",
            "/set temp 0.3",
            "/set seed 7",
            "/set seed default",
            "/set top-k x",
            "/set zzz 1",
        ):
            await say(pilot, app, line)
        assert app.chat.controller.conversation.sampling == Sampling(temperature=0.3)
        assert "top-k wants a whole number" in shown(app)
        assert "no setting zzz" in shown(app)
        await say(pilot, app, "/set hedge 30")
        await say(pilot, app, "/set audit bad")
        await until(pilot, lambda: "audit cannot be bad" in shown(app))
        assert fake.tuned == [("hedge", "30")]
        await say(pilot, app, "/set theme light")
        assert app.theme == "swarm-light"
        await say(pilot, app, "/set theme pink")
        assert "theme is one of" in shown(app)
        await say(pilot, app, "/set temperature")
        assert "0 is greedy" in shown(app)

    play(home, scene)

    async def again(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        assert app.theme == "swarm-light"

    play(home, again)


def test_system_prompt(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/system")
        assert "no system prompt" in shown(app)
        await say(pilot, app, "/system Speak in verse.")
        await say(pilot, app, "/system")
        assert "Speak in verse." in shown(app)
        await say(pilot, app, "x")
        await idle(pilot, app)
        assert fake.asked[-1].turns[0].text == "Speak in verse."
        await say(pilot, app, "/system off")
        await say(pilot, app, "y")
        await idle(pilot, app)
        assert fake.asked[-1].turns[0].role == "user"

    play(home, scene)


def test_models_are_listed_and_switched(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/model")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        assert "fetches 2.3 GB" in screen_text(app)
        assert "missing layer 3, layer 17" in screen_text(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.chat.controller.model == MODELS[1].name)
        await say(pilot, app, "/model nonsense")
        await until(pilot, lambda: "has no model nonsense" in shown(app))
        assert app.chat.controller.model == MODELS[1].name
        await say(pilot, app, "still here?")
        await idle(pilot, app)

    play(home, scene)


def test_the_swarm_is_shown_live_and_lending_paused_from_there(home: Path) -> None:
    from dataclasses import replace

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/swarm")
        await until(pilot, lambda: isinstance(app.screen, SwarmScreen))
        await until(pilot, lambda: "layers 8–15" in screen_text(app))
        fake.view = replace(fake.view, peers=fake.view.peers[:1])
        await until(pilot, lambda: "layers 8–15" not in screen_text(app), "the peer to go")
        await pilot.press("p")
        await until(pilot, lambda: bool(fake.donated))
        assert fake.donated[-1].paused
        await pilot.press("p")
        await until(pilot, lambda: len(fake.donated) == 2)
        assert not fake.donated[-1].paused
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)

    play(home, scene)


def test_donating(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "/donate both 8GB")
        await until(pilot, lambda: "Lending 8.0 GB of disk and 8.0 GB of memory" in shown(app))
        await say(pilot, app, "/donate pause")
        await until(pilot, lambda: "paused" in shown(app))
        for bad in ("/donate disk", "/donate disk lots", "/donate soup 8GB"):
            await say(pilot, app, bad)
        assert shown(app).count("Write /donate") == 2
        assert "not a size" in shown(app)
        await say(pilot, app, "/donate off")
        await until(pilot, lambda: "lends nothing" in shown(app))
        await say(pilot, app, "/donate")

    play(home, scene)
    assert json.loads((home / "terminal.json").read_text())["lend"] == ""


def test_help_stats_and_copy(home: Path) -> None:
    backend = FakeBackend([[Text("Look:\n\n```py\nx = 1\n```\n"), Finished(EndReason.END, STATS)]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert "/donate" in screen_text(app)
        await pilot.press("escape")
        await say(pilot, app, "/help set")
        assert "/set [NAME [VALUE]]" in shown(app)
        await say(pilot, app, "/help nonsense")
        assert "no command /nonsense" in shown(app)
        await say(pilot, app, "/stats")
        assert "Nothing was answered yet" in shown(app)
        await say(pilot, app, "/copy")
        assert "nothing to copy" in shown(app)
        await say(pilot, app, "code please")
        await idle(pilot, app)
        await say(pilot, app, "/stats")
        assert "12,000 calls, 75 % by others" in shown(app)
        await say(pilot, app, "/copy code")
        assert app.clipboard == "x = 1\n"
        await pilot.press("ctrl+y")
        assert app.clipboard.startswith("Look:")
        await say(pilot, app, "/copy all")
        assert app.clipboard.startswith("code please")
        await say(pilot, app, "/copy that")
        assert "Write /copy" in shown(app)

    play(home, scene, backend)


def test_search(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        for text in ("needle one", "hay", "needle two"):
            await say(pilot, app, text)
            await idle(pilot, app)
        await say(pilot, app, "/find NEEDLE")
        bar = app.chat.query_one(FindBar)
        await until(pilot, lambda: bar.display and "4 of 4" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "3 of 4" in screen_text(app))
        await pilot.press("down", "down")
        await until(pilot, lambda: "1 of 4" in screen_text(app))
        await pilot.press("z", "q")
        await until(pilot, lambda: "not found" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not bar.display)
        assert app.focused is app.chat.editor

    play(home, scene)


def test_completion_and_history(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        offer = app.chat.query_one(Completions)
        await pilot.press("/", "s", "w")
        await until(pilot, lambda: offer.display)
        await pilot.press("tab")
        assert app.chat.editor.text == "/swarm"
        app.chat.editor.put("")
        await until(pilot, lambda: not offer.display)
        app.chat.editor.put("/model qw")
        await pilot.pause()
        await pilot.press("tab")
        assert app.chat.editor.text == "/model qwen3-30b-a3b"
        await pilot.press("escape")
        app.chat.editor.put("")
        for text in ("one", "two\nlines"):
            await say(pilot, app, text)
            await idle(pilot, app)
        await pilot.press(*"draft", "up")
        assert app.chat.editor.text == "two\nlines"
        await pilot.press("up")
        assert app.chat.editor.text == "two\nlines"
        await pilot.press("up")
        assert app.chat.editor.text == "one"
        await pilot.press("down", "down", "down")
        assert app.chat.editor.text == "draft"

    play(home, scene)

    async def again(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("up")
        assert app.chat.editor.text == "two\nlines"

    play(home, again)


def test_the_command_palette_offers_commands(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"theme light")
        await until(pilot, lambda: "Theme light" in screen_text(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.theme == "swarm-light")

    play(home, scene)
