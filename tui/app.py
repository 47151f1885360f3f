"""The Textual application: opens a screen at once, everything slow behind it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from swarm.errors import SwarmError
from swarm.peers.settings import Remembered, load_remembered, remember
from tui import theme
from tui.backend import Backend, Donation
from tui.bridge import Bridge
from tui.cleaner import clean, clean_line
from tui.commands import COMMANDS
from tui.controller import Controller
from tui.highlight import warm_up
from tui.machine import measure
from tui.messages import Connected, Event, Failed, Phase, Progress, Ready
from tui.options import Options, directory_of
from tui.preferences import History, load
from tui.problems import explain
from tui.screens.chat import ChatScreen
from tui.screens.models import ModelsScreen
from tui.screens.welcome import Answers, WelcomeScreen

_RETRY_S = (2.0, 5.0, 10.0, 30.0)
Make = Callable[[], Backend]


class SwarmApp(App[None]):
    """One user, one backend, one conversation at a time."""

    TITLE = "Swarm"
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    Screen { background: $background; color: $foreground; }
    OptionList {
        border: none; background: $background; padding: 0; scrollbar-size-vertical: 1;
        &:focus { border: none; background-tint: $background 0%; }
        & > .option-list--option-highlighted { text-style: none; }
    }
    SwarmApp:nocolor OptionList, SwarmApp:nocolor OptionList:focus {
        & > .option-list--option-highlighted { text-style: underline; }
    }
    Input, Input:focus { background-tint: $background 0%; }
    VerticalScroll { scrollbar-size-vertical: 1; }
    Toast { background: $panel; color: $foreground; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "To the shell", show=False, priority=True),
    ]

    def __init__(self, options: Options, make: Make) -> None:
        # Without colour, styles such as bold stay and every colour goes; else the theme decides.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.animation_level = "none"  # a page that glides misses the keys that come meanwhile
        self.options = options
        self.exit_signal = 0
        self._make = make
        self._preferences = load(options.home / "terminal.json")
        self._history = History(options.home / "history.jsonl")
        self._retries = 0
        self._connected = False

    @property
    def chat(self) -> ChatScreen:
        """The chat screen, under whatever is above it."""
        return self._chat

    def on_mount(self) -> None:
        """Paint first; then make the backend in its thread."""
        for known in (theme.DARK, theme.LIGHT, theme.TERMINAL):
            self.register_theme(known)
        self.use_theme(self._preferences.theme or theme.preferred())
        self._catch_signals()
        self.bridge = Bridge(self._make)
        self._chat = ChatScreen(self._controller, self._history)
        self.push_screen(self._chat)
        self.call_after_refresh(self._begin)

    def _controller(self, view: ChatScreen) -> Controller:
        return Controller(self.options, view, self._preferences)

    def _begin(self) -> None:
        self.bridge.start()
        self.run_worker(asyncio.to_thread(warm_up), exit_on_error=False)
        if self.options.target or self.options.local:
            self.connect(self.options.target or "")
            return
        remembered, problem = self._remembered()
        machine = measure(self.options.home)
        welcome = WelcomeScreen(
            machine,
            target=self._preferences.place or remembered.swarm or "",
            model=self.options.model or remembered.model or "",
            ask_lending=not self._preferences.asked,
            problem=clean(problem),
        )
        self.push_screen(welcome, self._answered)

    def _remembered(self) -> tuple[Remembered, str]:
        """The answers given once; none of them, and why, when they cannot be read."""
        try:
            return load_remembered(self.options.home / "settings.json"), ""
        except (SwarmError, OSError) as error:
            return Remembered(), explain(error)

    def _answered(self, answers: Answers | None) -> None:
        if answers is None:
            return
        self._connected = True
        controller = self.chat.controller
        directory = directory_of(answers.target)
        controller.prefer(place=answers.target if directory else "")
        if directory is None:  # other commands take only swarms from there
            try:
                remember(self.options.home / "settings.json", swarm=answers.target, model=answers.model)
            except (SwarmError, OSError) as error:
                self.chat.say(f"This is asked again the next time: {explain(error)}", "warning")
        if not self._preferences.asked:
            controller.prefer(asked=True, lend=answers.lend, lend_disk_bytes=answers.disk_bytes,
                              lend_ram_bytes=answers.ram_bytes)  # fmt: skip
        self.open_model(answers.model)
        self._lend()

    def _lend(self) -> None:
        """What was lent last time is lent again."""
        wanted = self.chat.controller.preferences
        if wanted.lend:
            wish = Donation(wanted.lend, wanted.lend_disk_bytes, wanted.lend_ram_bytes)
            self.chat.background(lambda backend: backend.donate(wish), lambda _: None)

    # Connecting and opening

    def connect(self, target: str) -> None:
        """Join; then open the model that was asked for."""
        self.chat.status.progress = Progress(Phase.CONNECTING, detail="" if self.options.local else target)
        self.chat.controller.opening = True
        if target.startswith("swarm://"):
            self.chat.status.progress = Progress(Phase.CONNECTING)
        self.bridge.run(lambda backend: backend.connect(target), self._connecting)

    def _connecting(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Progress():
                    self.chat.status.progress = event
                case Connected():
                    self._retries, self._connected = 0, True
                    self._joined(event)
                case Failed():
                    self._not_connected(event)
                case _:
                    pass
        self.chat.refresh_status()

    def _joined(self, event: Connected) -> None:
        status, controller = self.chat.status, self.chat.controller
        status.progress, status.problem = None, ""
        if controller.preferences.place and not self.options.local:
            controller.prefer(place="")
        controller.known_models = event.models
        self.chat.know()
        if not event.known and event.operator:
            self.chat.say(f"First time here. The operator's key is {clean_line(event.operator)}; it is "
                          "remembered, and a change of it will be refused.")  # fmt: skip
        names = [model.name for model in event.models]
        wanted = self.options.model or self._remembered()[0].model or ""
        if self.options.model or wanted in names:
            self.open_model(wanted)
        elif len(names) == 1:
            self.open_model(names[0])
        elif names:
            self.push_screen(ModelsScreen(event.models), lambda name: self.open_model(name) if name else None)
        else:
            self.chat.say("This swarm serves no model yet; its operator runs `swarm serve`.", "warning")
        self._lend()

    def _not_connected(self, event: Failed) -> None:
        self.chat.status.progress = None
        if not event.offline:
            self.chat.controller.not_opened()
        message = clean(event.message)
        if self.chat.status.problem != message:
            self.chat.say(message, "error")
        self.chat.status.problem = message
        if event.offline:
            seconds = _RETRY_S[min(self._retries, len(_RETRY_S) - 1)]
            self._retries += 1
            self.set_timer(seconds, lambda: self.connect(self.options.target or ""))

    def open_model(self, name: str) -> None:
        """Switch to a model."""
        self.chat.status.progress = Progress(Phase.LOADING, detail=name)
        self.chat.controller.opening = True
        self.bridge.run(lambda backend: backend.open(name), self._opening)
        self.chat.refresh_status()

    def _opening(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Progress():
                    self.chat.status.progress = event
                case Ready():
                    self.chat.opened(event)
                case Failed():
                    self.chat.status.progress = None
                    self.chat.say(clean(event.message), "error")
                    self.chat.controller.not_opened()
                case _:
                    pass
        self.chat.refresh_status()

    # Looks

    def use_theme(self, name: str) -> None:
        """dark, light or terminal; without colour always the terminal's own."""
        chosen = theme.THEMES.get(name, theme.DARK.name)
        self.theme = theme.THEMES["terminal"] if self.no_color else chosen

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette offers what slash commands do."""
        if screen is not self.chat:
            return
        for command in COMMANDS:
            if command.usage.startswith("[") or not command.usage:
                yield SystemCommand(
                    command.name.capitalize(),
                    command.summary,
                    lambda name=command.name: self.chat.controller.submit(f"/{name}"),
                )
        for name in ("dark", "light", "terminal"):
            yield SystemCommand(
                f"Theme {name}", "", lambda name=name: self.chat.controller.submit(f"/set theme {name}")
            )

    # Leaving

    def _catch_signals(self) -> None:
        """A signal ends the program as /quit does: the conversation kept, the terminal restored."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self._signalled, number)
            except (
                RuntimeError,
                ValueError,
            ):  # not in the main thread: whoever runs us there sees to signals
                return

    def _signalled(self, number: signal.Signals) -> None:
        self.exit_signal = int(number)
        self.chat.keep_partial()
        self.exit(return_code=128 + int(number))

    async def action_quit(self) -> None:
        """Leave; a running reply is kept as far as it came."""
        self.chat.keep_partial()
        self.exit()

    async def on_unmount(self) -> None:
        """Leave the swarm."""
        await self.bridge.close()


def run(options: Options, make: Make | None = None) -> int:
    """Open the terminal and stay until the user leaves. The exit code: 0, or 128 + a signal.

    `make` gives another backend than the one that the options describe; it runs in a thread of its own.
    """
    app = SwarmApp(options, make or (lambda: default_backend(options)))
    app.run(mouse=load(options.home / "terminal.json").mouse != "off")
    return app.return_code or 0


def default_backend(options: Options) -> Backend:
    """The backend for some options. Imports the engine, so it is called after the first paint."""
    from tui.places import backend_for

    return backend_for(options)
