"""Every command and key of the application, driven by a pilot over a fake backend."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.fakes import MODELS, STATS, FakeBackend, Stall
from tests.tui.harmless import harmless
from tests.tui.stage import idle, play, say, screen_text, shown, until
from tui.app import SwarmApp
from tui.conversation import Shelf
from tui.messages import (
    EndReason,
    Failed,
    Finished,
    Notice,
    NoticeKind,
    Phase,
    Progress,
    Ready,
    Reasoning,
    Retracted,
    Text,
)
from tui.options import Sampling
from tui.screens.conversations import ConversationsScreen
from tui.screens.help import HelpScreen
from tui.screens.models import ModelsScreen
from tui.screens.swarm import SwarmScreen
from tui.widgets.find import FindBar
from tui.widgets.line import Completions


def test_a_question_is_answered_and_saved(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press(*"Hi there", "enter")
        await idle(pilot, app)
        assert "▍ Hi there" in shown(app)
        assert "You said: Hi there" in shown(app)
        assert "128 tokens · 18.1 tok/s · 75 % by others" in shown(app)
        assert app.chat.editor.text == ""

    play(home, scene)
    shelf = Shelf(home / "conversations")
    (name,) = shelf.names()
    assert [turn.text for turn in shelf.load(name).turns] == ["Hi there", "You said: Hi there"]
    assert name.endswith("Hi there")


def test_enter_sends_and_other_enters_do_not(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d")
        assert app.chat.editor.text == "a\nb\nc\nd"
        assert not fake.asked
        await pilot.press("enter")
        await idle(pilot, app)
        assert fake.asked[0].turns[-1].text == "a\nb\nc\nd"
        await pilot.press("enter")
        assert len(fake.asked) == 1

    play(home, scene)


def test_a_paste_is_cleaned_and_never_sent(home: Path) -> None:
    from textual import events

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        app.chat.editor.post_message(events.Paste("one\r\ntwo\x1b[31m\rthree\n"))
        await pilot.pause()
        assert app.chat.editor.text == "one\ntwo␛[31m\nthree\n"
        assert not fake.asked

    play(home, scene)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
def test_a_reply_is_stopped_and_kept(home: Path, key: str) -> None:
    backend = FakeBackend([[Text("Half of "), Stall()]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "Tell me")
        await until(pilot, lambda: "Half of" in shown(app))
        assert app.chat.controller.replying
        await pilot.press(key)
        await idle(pilot, app)
        assert "stopped · 128 tokens" in shown(app)
        assert app.chat.controller.conversation.turns[-1].text == "Half of "

    play(home, scene, backend)


def test_what_is_typed_during_a_reply_waits(home: Path) -> None:
    backend = FakeBackend([[Text("One"), Stall(), Finished(EndReason.END)]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "first")
        await say(pilot, app, "second")
        assert "A reply is running" in shown(app)
        fake.go.set()
        await idle(pilot, app)
        assert len(fake.asked) == 1

    play(home, scene, backend)


def test_reasoning_is_folded_and_shown_on_request(home: Path) -> None:
    backend = FakeBackend(
        [[Reasoning("Because of "), Reasoning("this."), Text("So."), Finished(EndReason.END)]]
    )

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "Why?")
        await idle(pilot, app)
        assert "▸ thought for" in shown(app)
        assert "Because" not in shown(app)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert "│ Because of this." in shown(app)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert "Because" not in shown(app)
        rows = app.chat.transcript.document.text().split("\n")
        line = next(at for at, row in enumerate(rows) if "▸" in row)
        await pilot.click("#transcript", offset=(4, line - int(app.chat.transcript.scroll_offset.y)))
        assert "Because of this." in shown(app)
        assert app.chat.controller.conversation.turns[-1].reasoning == "Because of this."

    play(home, scene, backend)


def test_what_was_due_to_a_lie_is_replaced_and_the_liar_named(home: Path) -> None:
    ban = Notice(NoticeKind.BAN, "Peer 4 is left out from now on: it gave a wrong answer for layer 2.")
    backend = FakeBackend(
        [
            [
                Reasoning("Hm, a lie"),
                Text("The sky is **green**.\n\nSo is "),
                Stall(),
                ban,
                Retracted("donor 04 lied", "The sky is ", "Hm, "),
                Text("blue."),
                Finished(EndReason.END),
            ]
        ]
    )

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "Which colour?")
        await until(pilot, lambda: "green" in shown(app))
        fake.go.set()
        await idle(pilot, app)
        assert "The sky is blue." in shown(app)
        assert "green" not in shown(app)
        assert "So is" not in shown(app)
        lines = app.chat.transcript.document.text().split("\n")
        (at,) = (at for at, line in enumerate(lines) if "Peer 4 is left out from now on" in line)
        assert "thought" in lines[at + 2], "one blank line above and below it"
        assert "Which colour?" in lines[at - 2]
        assert "corrected" in app.chat.status.news
        turn = app.chat.controller.conversation.turns[-1]
        assert (turn.text, turn.reasoning) == ("The sky is blue.", "Hm, ")

    play(home, scene, backend)


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


def test_control_c_copies_clears_and_explains(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press(*"word", "shift+home", "ctrl+c")
        assert app.clipboard == "word"
        await pilot.press("end", "ctrl+c")
        assert app.chat.editor.text == ""
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "Ctrl-Q or /quit leaves" in screen_text(app))

    play(home, scene)


def test_control_d_leaves_with_nothing_written_and_deletes_else(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press(*"ab", "home", "ctrl+d")
        assert app.chat.editor.text == "b"
        await pilot.press("ctrl+d", "ctrl+d")
        await until(pilot, lambda: app._exit, "the end")

    play(home, scene)


def test_a_failed_reply_keeps_the_conversation(home: Path) -> None:
    backend = FakeBackend([[Text("So far"), Failed("No replica has chunk 7.", offline=True)]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "ask")
        await idle(pilot, app)
        assert "✗ No replica has chunk 7." in shown(app)
        assert "/retry asks again" in shown(app)
        await say(pilot, app, "/retry")
        await idle(pilot, app)
        assert "You said: ask" in shown(app)

    play(home, scene, backend)


def test_a_fault_of_ours_is_said_and_survived(home: Path) -> None:
    class Broken(FakeBackend):
        def ask(self, request: Any) -> Any:
            raise KeyError("oops")

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "ask")
        await idle(pilot, app)
        assert "Swarm made a mistake: KeyError" in shown(app)

    play(home, scene, Broken())


def test_going_offline_and_coming_back_is_said_once(home: Path) -> None:
    from dataclasses import replace

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        online = fake.view
        fake.view = replace(online, link="offline")
        await until(pilot, lambda: "out of reach" in shown(app))
        assert "offline · cached bytes still answer" in screen_text(app)
        fake.view = online
        await until(pilot, lambda: "Connected again." in shown(app))
        assert shown(app).count("out of reach") == 1

    play(home, scene)


def test_notices_are_shown_while_a_reply_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.screens.chat._NEWS_S", 0.3)
    notice = Notice(NoticeKind.FAILOVER, "Peer 2 does not answer;\x1b[2J [b]peer 3[/b] takes over.")
    backend = FakeBackend([[Progress(Phase.PREFILL, 3, 9), notice, Stall()]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "ask")
        await until(pilot, lambda: "[b]peer 3[/b] takes over" in screen_text(app))
        await until(pilot, lambda: "prefill 3/9" in screen_text(app), "the news to pass")
        fake.held_up = Progress(Phase.COMPILING)
        await until(pilot, lambda: "compiling kernels" in screen_text(app))
        fake.stop()
        await idle(pilot, app)

    play(home, scene, backend)


def test_a_tracker_that_is_not_there_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.app._RETRY_S", (0.02,))
    away = [Failed("The tracker does not answer.", offline=True)]
    backend = FakeBackend(connecting=[away, away, away])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await until(pilot, lambda: bool(app.chat.controller.model), "a model after all")
        assert shown(app).count("The tracker does not answer.") == 1
        assert len(fake.joined) == 4

    play(home, scene, backend, ready=False)


def test_a_refusal_is_not_tried_again(home: Path) -> None:
    backend = FakeBackend(connecting=[[Failed("The operator's key changed.")]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await until(pilot, lambda: "key changed" in shown(app))
        assert "● The operator's key changed." in screen_text(app)
        await say(pilot, app, "hello?")
        assert "No model is open yet" in shown(app)
        assert app.chat.editor.text == "hello?"

    play(home, scene, backend, ready=False)


def test_hostile_text_is_only_text(home: Path) -> None:
    evil = "\x1b]0;pwned\x07\x1b[2J\x9b5A\u202e[red]x[/red] [@click=app.quit]y[/] <b>z</b>"
    backend = FakeBackend([[Reasoning(evil), *(Text(letter) for letter in evil), Finished(EndReason.END)]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, evil)
        await idle(pilot, app)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert harmless(screen_text(app))
        assert "[red]x[/red]" in screen_text(app)
        assert shown(app).count("[@click=app.quit]y[/]") == 3

    play(home, scene, backend, size=(100, 30))


def test_quitting_keeps_a_running_reply(home: Path) -> None:
    backend = FakeBackend([[Text("Unfinished bus"), Stall()]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "go")
        await until(pilot, lambda: "Unfinished" in shown(app))
        await say(pilot, app, "/quit")
        await until(pilot, lambda: app._exit, "the end")

    play(home, scene, backend)
    assert backend.closed
    (name,) = Shelf(home / "conversations").names()
    assert Shelf(home / "conversations").load(name).turns[-1].text == "Unfinished bus"


def test_the_command_palette_offers_commands(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"theme light")
        await until(pilot, lambda: "Theme light" in screen_text(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.theme == "swarm-light")

    play(home, scene)


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (80, 24), (200, 60)])
def test_any_size_and_any_resize(home: Path, size: tuple[int, int]) -> None:
    long = "# Title\n\n" + "A sentence of several words. " * 60 + "\n\n```py\nx = 1\n```\n"
    backend = FakeBackend([[Text(long), Finished(EndReason.END, STATS)]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "long please")
        await idle(pilot, app)
        for width, height in (size, (33, 9), (1, 1), (120, 40), size):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
        assert app.chat.transcript.is_vertical_scroll_end
        assert "128 tokens" in screen_text(app)

    play(home, scene, backend, size=size)


def test_scrolled_away_the_view_stays_while_a_reply_grows(home: Path) -> None:
    backend = FakeBackend([[Text("line\n\n" * 60), Stall(), Text("more\n\n" * 60), Finished(EndReason.END)]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "go")
        await until(pilot, lambda: app.chat.transcript.max_scroll_y > 60)
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        at = app.chat.transcript.scroll_offset.y
        fake.go.set()
        await idle(pilot, app)
        assert app.chat.transcript.scroll_offset.y == at
        await pilot.press("ctrl+end")
        await pilot.pause()
        assert app.chat.transcript.is_vertical_scroll_end
        await pilot.press("ctrl+home")
        await pilot.pause()
        assert app.chat.transcript.scroll_offset.y == 0

    play(home, scene, backend)


def test_a_message_waits_for_the_model(home: Path) -> None:
    opening = [[Progress(Phase.FETCHING), Stall(), Ready(MODELS[0], 4096)]]

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await until(pilot, lambda: "fetching" in screen_text(app))
        await say(pilot, app, "early")
        assert "sent as soon as the model is open" in shown(app)
        assert not fake.asked
        fake.go.set()
        await until(pilot, lambda: bool(fake.asked))
        await idle(pilot, app)
        assert "You said: early" in shown(app)

    play(home, scene, FakeBackend(opening=opening), ready=False)


def test_a_message_comes_back_when_there_is_no_model(home: Path) -> None:
    opening = [[Progress(Phase.FETCHING), Stall(), Failed("No space left.")]]

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await until(pilot, lambda: "fetching" in screen_text(app))
        await say(pilot, app, "early")
        fake.go.set()
        await until(pilot, lambda: "No space left" in shown(app))
        assert app.chat.editor.text == "early"

    play(home, scene, FakeBackend(opening=opening), ready=False)


def test_lending_that_fails_is_said_once(home: Path) -> None:
    from dataclasses import replace

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        donation = replace(fake.view.donation, state="failed", detail="no such \x1b[2J disk")
        fake.view = replace(fake.view, donation=donation)
        await until(pilot, lambda: "✗ Lending 4.0 GB of memory · failed" in shown(app))
        assert "no such ␛[2J disk" in shown(app)
        await asyncio.sleep(0.6)
        assert shown(app).count("failed") == 1

    play(home, scene)
