"""The application on a stage: a fake backend, a home of its own, a pilot, and the screen as text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from tests.tui.fakes import FakeBackend
from tui.app import SwarmApp
from tui.options import Options

Play = Callable[[SwarmApp, Pilot[None], FakeBackend], Coroutine[Any, Any, None]]


async def until(pilot: Pilot[None], condition: Callable[[], bool], what: str = "") -> None:
    """Wait until something is so; AssertionError when it does not come."""
    for _ in range(400):
        await pilot.pause()
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what or condition}")


@asynccontextmanager
async def stage(
    home: Path,
    backend: FakeBackend | None = None,
    *,
    target: str | None = "192.168.1.20:7300",
    model: str | None = "olmoe-1b-7b",
    size: tuple[int, int] = (80, 24),
    ready: bool = True,
) -> AsyncIterator[tuple[SwarmApp, Pilot[None], FakeBackend]]:
    """The running application; `ready`: a model is open."""
    fake = backend or FakeBackend()
    app = SwarmApp(Options(home=home, target=target, model=model), lambda: fake)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.bridge.backend is not None, "the backend")
        if ready:
            await until(pilot, lambda: bool(app.chat.controller.model), "a model")
            await until(pilot, lambda: bool(app.chat.status.swarm.peers), "the first look at the swarm")
        await pilot.pause()
        with app._context():
            yield app, pilot, fake


def play(home: Path, scene: Play, backend: FakeBackend | None = None, **options: Any) -> None:
    """Run a scene on a stage."""

    async def run() -> None:
        async with stage(home, backend, **options) as (app, pilot, fake):
            await scene(app, pilot, fake)

    asyncio.run(run())


def shown(app: SwarmApp) -> str:
    """The whole scrollback, as if lines never wrapped."""
    return " ".join(app.chat.transcript.document.text().split())


def screen_text(app: SwarmApp) -> str:
    """What the screen shows, line by line, without trailing spaces."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    shown = ["".join(segment.text for segment in strip).rstrip() for strip in lines]
    assert len(shown) == height, (len(shown), width, height)
    return "\n".join(shown) + "\n"


async def say(pilot: Pilot[None], app: SwarmApp, line: str) -> None:
    """Type a line at once and send it."""
    app.chat.editor.put(line)
    await pilot.press("enter")
    await pilot.pause()


async def idle(pilot: Pilot[None], app: SwarmApp) -> None:
    """Wait for the reply to end and to be drawn."""
    await until(pilot, lambda: not app.chat.controller.replying, "the end of the reply")
    await pilot.pause()
