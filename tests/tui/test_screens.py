"""Every screen in several sizes and states, compared with golden files of what it showed before.

SWARM_WRITE_GOLDEN=1 writes the files anew; look at the difference before keeping it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.fakes import MODELS, STATS, FakeBackend, Stall, demo_swarm
from tests.tui.stage import idle, say, screen_text, stage, until
from tui.app import SwarmApp
from tui.backend import Turn
from tui.conversation import Conversation, Shelf
from tui.machine import Machine
from tui.messages import EndReason, Failed, Finished, Phase, Progress, Reasoning, Text
from tui.screens.welcome import WelcomeScreen
from tui.views import Found, SwarmView

GOLDEN = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 40), (44, 14))
ANSWER = """## Routing

The router scores **all experts** and keeps the best `k`:

1. multiply the hidden state with the router's matrix
2. take the softmax
3. keep the `k` largest — ties go to the lower index

```python
def route(logits, k):
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return order[:k]
```

| expert | replicas |
|--------|---------:|
| 17     | 3        |
| 中文   | 1        |

> See [the paper](https://example.org/moe).
"""
Prepare = Callable[[SwarmApp, Pilot[None], FakeBackend], Awaitable[None]]


@dataclass
class Scene:
    """A state of a screen."""

    prepare: Prepare
    backend: Callable[[], FakeBackend] = FakeBackend
    options: dict[str, Any] = field(default_factory=dict)


async def nothing(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    """The screen as it comes up."""


async def connecting(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    await until(pilot, lambda: "fetching" in screen_text(app))


async def streaming(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    fake.now = replace(STATS, reply_tokens=41, decode_s=2.0)
    await say(pilot, app, "How are experts chosen?\nBriefly, please.")
    await until(pilot, lambda: "order[:k]" in app.chat.transcript.document.text())
    await until(pilot, lambda: "20.0 tok/s" in screen_text(app))


async def long(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    await say(pilot, app, "How are experts chosen?")
    await idle(pilot, app)
    await say(pilot, app, "/stats")


async def failed(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    await say(pilot, app, "How are experts chosen?")
    await idle(pilot, app)


async def offline(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    fake.view = replace(fake.view, link="offline")
    await until(pilot, lambda: "out of reach" in screen_text(app))


async def completing(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    app.chat.editor.put("/s")


async def searching(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    await failed(app, pilot, fake)
    await say(pilot, app, "/find expert")
    await until(pilot, lambda: " of " in screen_text(app))


def panel(command: str) -> Prepare:
    """A panel that a command opens."""

    async def prepare(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await say(pilot, app, command)
        await until(pilot, lambda: app.screen is not app.chat)

    return prepare


async def conversations(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
    shelf = Shelf(app.options.home / "conversations")
    for at, name in enumerate(
        ("2026-01-02 Why is the sky blue", "2026-01-03 A [b]plan[/b] for 中文", "notes")
    ):
        path = shelf.save(name, Conversation([Turn("user", "x")]))
        os.utime(path, (at, at))
    await panel("/load")(app, pilot, fake)


def welcome(*keys: str) -> Prepare:
    """A step of the first run."""

    async def prepare(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await until(pilot, lambda: isinstance(app.screen, WelcomeScreen))
        await until(pilot, lambda: "Looking" not in screen_text(app))
        for key in keys:
            await pilot.press(*key.split("+"))
            await until(pilot, lambda: not app.screen._busy)  # type: ignore[attr-defined]
            await pilot.pause()

    return prepare


def newcomer() -> FakeBackend:
    """What a first run meets."""
    return FakeBackend(
        found=(Found("Home", "192.168.1.20:7300"), Found("lab", "[fe80::1]:7300")), known=False
    )


FIRST = {"target": None, "model": None, "ready": False}
FETCHING = Progress(Phase.FETCHING, 1_200_000_000, 4_000_000_000, "B", 92_000_000)
SCENES = {
    "empty": Scene(nothing),
    "connecting": Scene(
        connecting, lambda: FakeBackend(connecting=[[FETCHING, Stall()]], view=SwarmView()), {"ready": False}
    ),
    "streaming": Scene(
        streaming,
        lambda: FakeBackend(
            [[Reasoning("Let me think."), Progress(Phase.DECODING), Text(ANSWER[:420]), Stall()]]
        ),
    ),
    "long": Scene(long, lambda: FakeBackend([[Text(ANSWER * 3), Finished(EndReason.END, STATS)]])),
    "failed": Scene(
        failed, lambda: FakeBackend([[Text(ANSWER[:80]), Failed("Peer 2 sent bytes that are not chunk 7.")]])
    ),
    "refused": Scene(
        nothing,
        lambda: FakeBackend(
            connecting=[[Failed("The operator's key changed from 7f3a to 91c2.")]], view=SwarmView()
        ),
        {"ready": False},
    ),
    "offline": Scene(offline),
    "completing": Scene(completing),
    "searching": Scene(searching, lambda: FakeBackend([[Text(ANSWER), Finished(EndReason.STOPPED, STATS)]])),
    "swarm": Scene(panel("/swarm")),
    "swarm-alone": Scene(
        panel("/swarm"), lambda: FakeBackend(view=replace(demo_swarm(), experts=(), bans=()))
    ),
    "models": Scene(panel("/model")),
    "models-none": Scene(panel("/model"), lambda: FakeBackend(listed=MODELS[:1])),
    "help": Scene(panel("/help")),
    "conversations": Scene(conversations),
    "conversations-none": Scene(panel("/load")),
    "welcome-where": Scene(welcome(), newcomer, FIRST),
    "welcome-problem": Scene(
        welcome("x+enter"),
        lambda: FakeBackend(connecting=[[Failed("Nobody answers at x:7300; is it right?")]]),
        FIRST,
    ),
    "welcome-which": Scene(welcome("x+enter"), newcomer, FIRST),
    "welcome-lend": Scene(welcome("x+enter", "enter", "down+down+down"), newcomer, FIRST),
}


@pytest.mark.parametrize("name", SCENES)
def test_screen(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.app.measure", lambda directory: Machine(100 * 10**9, 24 * 10**9))
    scene = SCENES[name]
    shown: dict[str, str] = {}

    async def run() -> None:
        async with stage(home, scene.backend(), **scene.options) as (app, pilot, fake):
            await scene.prepare(app, pilot, fake)
            for width, height in SIZES:
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                await until(pilot, lambda: settled(app))
                shown[f"{name}-{width}x{height}"] = stable(screen_text(app))
            fake.go.set()

    asyncio.run(run())
    for file, text in shown.items():
        path = GOLDEN / f"{file}.txt"
        if os.environ.get("SWARM_WRITE_GOLDEN"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, f"{file} looks otherwise than before:\n{text}"


def settled(app: SwarmApp) -> bool:
    """Everything is rendered for this size."""
    return all(piece.fresh for piece in app.chat.transcript.document.pieces)


def stable(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"thought for [\d.]+ s", "thought for 0.0 s", text)
