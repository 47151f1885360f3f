"""Makes the pictures of README from the real application in a real swarm: `python docs/pictures.py [MODEL]`.

A tracker with origin, two donors of compute and one of disk run as processes; the application is driven as a user
would, and its screens are exported as SVG.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from swarm.cli.demonstration import DemoModel, demo_model, running_swarm
from swarm.demo.corpus import is_right
from tui.app import SwarmApp
from tui.options import Options, Sampling
from tui.places import backend_for

HERE = Path(__file__).resolve().parent
SIZE = (96, 32)
QUESTIONS = {
    "swarm": "What is Swarm?",
    "tracker": "What does a tracker know?",
    "lend_compute": "How can I lend my CPU?",
}
PATIENCE_S = 120.0


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Waits until something is so. TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)
            await pilot.pause()


async def say(pilot: Pilot[None], app: SwarmApp, line: str) -> None:
    """Types a line and waits until it is answered."""
    app.chat.editor.put(line)
    await pilot.press("enter")
    await pilot.pause()
    await until(pilot, lambda: not app.chat.controller.replying)


async def draw(invite: str, home: Path, trained: bool) -> None:
    """Asks, and exports the chat and the network; refuses to show wrong answers of the `trained` model."""
    options = Options(home=home, target=invite, sampling=Sampling(temperature=0))
    app = SwarmApp(options, lambda: backend_for(options))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: bool(app.chat.controller.model))
        for topic, question in QUESTIONS.items():
            await say(pilot, app, question)
            answer = app.chat.controller.conversation.turns[-1].text
            if trained and not is_right(topic, answer):
                raise SystemExit(f"No picture: to {question!r} the model answers {answer!r}")
        await asyncio.sleep(2)
        await pilot.pause()
        save("chat", app.export_screenshot(title="swarm chat"))
        await say(pilot, app, "/swarm")
        await asyncio.sleep(2)
        await pilot.pause()
        save("swarm", app.export_screenshot(title="swarm chat: /swarm"))


def save(name: str, picture: str) -> None:
    """Writes docs/NAME.svg."""
    (HERE / f"{name}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    """Draws."""
    with tempfile.TemporaryDirectory(prefix="swarm-pictures-") as folder:
        place = Path(folder)
        model = DemoModel(Path(sys.argv[1]), True) if len(sys.argv) > 1 else demo_model(place)
        home = place / "chat"
        home.mkdir()
        os.environ["SWARM_HOME"] = str(home)
        with running_swarm(place, model) as swarm:
            asyncio.run(draw(swarm.invite, home, len(sys.argv) == 1))


if __name__ == "__main__":
    main()
