"""Every command and key of the application, driven by a pilot over a fake backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.tui.fakes import MODELS, STATS, FakeBackend, Stall
from tests.tui.harmless import harmless
from tests.tui.stage import idle, play, say, screen_text, shown, until
from tui.app import SwarmApp
from tui.conversation import Shelf
from tui.messages import (
    EndReason,
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
