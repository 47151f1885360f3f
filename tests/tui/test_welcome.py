"""The first run: from an invite to a chat, and how the second one is shorter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input

from swarm.peers.settings import load_remembered
from tests.tui.fakes import MODELS, FakeBackend
from tests.tui.stage import Play, screen_text, stage, until
from tui.app import SwarmApp
from tui.machine import Machine
from tui.messages import Failed
from tui.preferences import load
from tui.screens.welcome import WelcomeScreen, fits
from tui.views import Found, ModelView


def play(home: Path, scene: Play, backend: FakeBackend | None = None) -> FakeBackend:
    """Run a scene of the first run."""
    fake = backend or FakeBackend(known=False)

    async def run() -> None:
        async with stage(home, fake, target=None, model=None, ready=False) as (app, pilot, _):
            await until(pilot, lambda: isinstance(app.screen, WelcomeScreen), "the first question")
            await scene(app, pilot, fake)

    asyncio.run(run())
    return fake


def field(app: SwarmApp, name: str) -> Input:
    """A field of the screen."""
    return app.screen.query_one(f"#{name}", Input)


async def step(app: SwarmApp, pilot: Pilot[None], text: str) -> None:
    """Wait for a text, and for the keys to go where it is."""
    await until(pilot, lambda: text in screen_text(app), text)
    await pilot.pause()


def test_control_c_leaves(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press(*"half an inv", "ctrl+c")
        await until(pilot, lambda: app._exit, "the end")

    play(home, scene)


def test_from_an_invite_to_a_chat_and_again_with_two_enters(home: Path) -> None:
    async def first(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press(*"swarm://abc", "enter")
        await step(app, pilot, "new on this machine")
        assert "7f3a 91c2" in screen_text(app)
        assert "Fetches 700 MB before the first answer" in screen_text(app)
        await pilot.press("down")
        await step(app, pilot, "Fetches 2.3 GB before")
        await pilot.press("enter")
        await step(app, pilot, "How do you want to take part?")
        await pilot.press("down", "down")
        await until(pilot, lambda: field(app, "disk").disabled and not field(app, "ram").disabled)
        field(app, "ram").value = "3GB"
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.controller.model == MODELS[1].name)
        await until(pilot, lambda: bool(fake.donated))

    fake = play(home, first)
    assert fake.joined == ["swarm://abc"]
    assert (fake.donated[0].kind, fake.donated[0].disk_bytes, fake.donated[0].ram_bytes) == (
        "compute",
        0,
        3 * 10**9,
    )
    assert load_remembered(home / "settings.json").swarm == "swarm://abc"
    assert load_remembered(home / "settings.json").model == MODELS[1].name
    assert load(home / "terminal.json").lend == "compute"
    assert (home / "settings.json").stat().st_mode & 0o777 == 0o600

    async def second(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("enter")
        await step(app, pilot, "Operator")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.controller.model == MODELS[1].name)
        await until(pilot, lambda: bool(fake.donated), "what was lent to be lent again")

    assert play(home, second).joined == ["swarm://abc"]


def test_mistakes_are_named_and_one_can_go_back(home: Path) -> None:
    backend = FakeBackend(connecting=[[Failed("Nobody answers at x; \x1b[2Jis it [b]right[/b]?")]])

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("enter")
        await step(app, pilot, "Paste the invite")
        await pilot.press("x", "enter")
        await step(app, pilot, "Nobody answers at x; ␛[2Jis it [b]right[/b]?")
        await pilot.press("y", "enter")
        await step(app, pilot, "Operator")
        await pilot.press("escape")
        await step(app, pilot, "or type an address")
        await pilot.press("enter")
        await step(app, pilot, "Operator")
        await pilot.press("enter")
        await step(app, pilot, "take part")
        await pilot.press("down")
        await pilot.pause()
        for value, problem in (("lots", "not a size"), ("9000TB", "of disk are free")):
            field(app, "disk").value = value
            await pilot.press("enter")
            await step(app, pilot, problem)
        await pilot.press("down")
        await pilot.pause()
        field(app, "ram").value = "9000TB"
        await pilot.press("enter")
        await step(app, pilot, "of memory")
        await pilot.press("up", "up", "enter")
        await until(pilot, lambda: bool(app.chat.controller.model))
        assert fake.joined == ["x", "xy", "xy"]
        assert not fake.donated

    play(home, scene, backend)
    assert json.loads((home / "terminal.json").read_text())["asked"] is True


def test_swarms_on_the_network_are_offered(home: Path) -> None:
    evil = Found("[b]lab\x1b[2J[/b]", "[fe80::1]:7300")

    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await step(app, pilot, "[b]lab␛[2J[/b]")
        await pilot.press("down", "enter")
        await step(app, pilot, "Operator")
        assert fake.joined == ["[fe80::1]:7300"]

    play(home, scene, FakeBackend(found=(evil,)))


def test_a_swarm_without_models_says_whose_turn_it_is(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("x", "enter")
        await step(app, pilot, "serves no model yet")

    play(home, scene, FakeBackend(listed=()))


def test_what_fits() -> None:
    machine = Machine(10**9, 10**10)
    assert fits(ModelView("x", size_bytes=5), machine).startswith("Fetches what it reads, at most 5 B")
    assert fits(ModelView("x", needed_bytes=5, fetched_bytes=5), machine).startswith("Nothing is fetched")
    assert fits(ModelView("x", needed_bytes=5 * 10**9), machine).endswith("which is too little.")


def test_a_directory_is_remembered_for_here_and_not_as_a_swarm(home: Path) -> None:
    async def scene(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press(*"/some/where", "enter")
        await step(app, pilot, "Operator")
        await pilot.press("enter")
        await step(app, pilot, "take part")
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.chat.controller.model))

    play(home, scene)
    assert load(home / "terminal.json").place == "/some/where"
    assert load_remembered(home / "settings.json").swarm is None

    async def again(app: SwarmApp, pilot: Pilot[None], fake: FakeBackend) -> None:
        await pilot.press("enter")
        await step(app, pilot, "Operator")

    assert play(home, again).joined == ["/some/where"]
