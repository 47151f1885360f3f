"""What fails around a conversation: replies, trackers, models and lending; the conversation is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.fakes import FakeBackend, Stall
from tests.tui.stage import idle, play, say, screen_text, shown, until
from tui.app import SwarmApp
from tui.messages import (
    Failed,
    Notice,
    NoticeKind,
    Phase,
    Progress,
    Text,
)


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
    monkeypatch.setattr("tui.screens.chat._NEWS_S", 600.0)
    notice = Notice(NoticeKind.FAILOVER, "Peer 2 does not answer;\x1b[2J [b]peer 3[/b] takes over.")
    backend = FakeBackend([[Progress(Phase.PREFILL, 3, 9), notice, Stall()]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, "ask")
        await until(pilot, lambda: "[b]peer 3[/b] takes over" in screen_text(app))
        monkeypatch.setattr("tui.screens.chat._NEWS_S", 0.01)
        app.chat.tell("Later news.")
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
