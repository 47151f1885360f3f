"""The first run: where, which model, how to take part. The second time Enter, Enter.

1. an invite, an address or a directory; swarms found on the local network are offered
2. the operator's fingerprint, and the models with what each would fetch; one is chosen
3. what this machine lends, with sizes proposed; skipped when it was answered before
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Input, OptionList, Static
from textual.widgets.option_list import Option

from swarm.units import format_bytes, parse_bytes
from tui.cleaner import clean, clean_line
from tui.machine import Machine
from tui.messages import Connected, Event, Failed, Progress
from tui.palette import Palette
from tui.problems import NotThere
from tui.screens.models import describe
from tui.status import describe as describe_progress
from tui.theme import palette_of
from tui.views import Found, ModelView

if TYPE_CHECKING:
    from tui.app import SwarmApp

_LENDING = (
    ("", "Just chat", "nothing is lent"),
    ("disk", "Lend disk", "serve pieces of the model to others"),
    ("compute", "Lend compute", "run experts for others, at low priority"),
    ("both", "Both", "disk and compute"),
)


@dataclass(frozen=True)
class Answers:
    """What the user said."""

    target: str
    model: str
    lend: str
    disk_bytes: int
    ram_bytes: int


class WelcomeScreen(Screen[Answers]):
    """Asks; the result is the answers."""

    DEFAULT_CSS = """
    WelcomeScreen {
        align: center middle; background: $background;
        & #card {
            width: 100%; max-width: 78; height: auto; max-height: 100%; padding: 1 2; overflow-y: auto;
        }
        & ContentSwitcher { height: auto; }
        & ContentSwitcher > Vertical { height: auto; }
        & Static { width: 100%; height: auto; }
        & .quiet { color: $text-muted; }
        & #title { margin-bottom: 1; }
        & Input { border: round $border-blurred; background: $background; margin: 1 0 0 0; height: 3; }
        & Input:focus { border: round $border; }
        & OptionList { margin: 1 0; height: auto; max-height: 14; }
        & #looking { margin-top: 1; }
        & #problem { color: $error; margin-top: 1; }
        & #progress { color: $text-muted; margin-top: 1; }
        & #keys { margin-top: 1; }
        & #sizes { height: 4; }
        & #sizes Input { width: 1fr; margin: 1 1 0 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("ctrl+c", "app.quit", "Leave", priority=True, show=False),
        Binding("down", "into_list", "To the list", show=False),
    ]

    def __init__(
        self,
        machine: Machine,
        *,
        target: str = "",
        model: str = "",
        ask_lending: bool = True,
        problem: str = "",
    ) -> None:
        """`problem`: what to say first."""
        super().__init__()
        self._machine = machine
        self._target = target
        self._model = model
        self._ask_lending = ask_lending
        self._problem = problem
        self._found: Sequence[Found] = ()
        self._models: Sequence[ModelView] = ()
        self._busy = False

    @property
    def palette(self) -> Palette:
        """The palette of the application's theme."""
        return palette_of(self.app.theme)

    def compose(self) -> ComposeResult:
        """A card in the middle."""
        with Vertical(id="card"):
            yield Static(id="title", markup=False)
            with ContentSwitcher(initial="where", id="steps"):
                with Vertical(id="where"):
                    yield Static(
                        "Paste an invite (swarm://…), or type an address or a directory.", markup=False
                    )
                    yield Input(self._target, placeholder="swarm://…  or  host:7300  or  /path/to/model",
                                id="target", select_on_focus=True)  # fmt: skip
                    yield Static("Looking for swarms on this network …", id="looking", classes="quiet",
                                 markup=False)  # fmt: skip
                    yield OptionList(id="found")
                with Vertical(id="which"):
                    yield Static(id="operator", markup=False)
                    yield OptionList(id="models")
                    yield Static(id="fits", classes="quiet", markup=False)
                with Vertical(id="lend"):
                    yield Static("How do you want to take part? It can be changed at any time.", markup=False)
                    yield OptionList(id="lending")
                    with Horizontal(id="sizes"):
                        yield Input(format_bytes(self._machine.disk_offer), id="disk")
                        yield Input(format_bytes(self._machine.ram_offer), id="ram")
            yield Static(id="progress", markup=False)
            yield Static(id="problem", markup=False)
            yield Static(
                "Enter goes on · Esc goes back · Ctrl-Q leaves", id="keys", classes="quiet", markup=False
            )

    def on_mount(self) -> None:
        """Begin with the address; look around meanwhile."""
        title = Text.assemble(
            ("Swarm", self.palette.heading), ("  models larger than a machine", self.palette.muted)
        )
        self.query_one("#title", Static).update(title)
        self.query_one("#found").display = False
        self.query_one("#disk", Input).border_title = "disk"
        self.query_one("#ram", Input).border_title = "memory"
        self.query_one("#target", Input).focus()
        self._tell(self._problem)
        self.run_worker(self._look(), exit_on_error=False)

    # Step 1: where

    async def _look(self) -> None:
        bridge = cast("SwarmApp", self.app).bridge
        try:
            self._found = await bridge.call(lambda backend: backend.discover(1.5))
        except (OSError, NotThere):
            self._found = ()
        looking = self.query_one("#looking", Static)
        if not self._found:
            looking.update("No swarm announces itself on this network.")
            return
        looking.update("Found on this network:")
        found = self.query_one("#found", OptionList)
        found.display = True
        for at, swarm in enumerate(self._found):
            line = Text.assemble((clean_line(swarm.name, 40), self.palette.text), "  ",
                                 (clean_line(swarm.address, 60), self.palette.muted))  # fmt: skip
            found.add_option(Option(line, id=str(at)))
        found.highlighted = 0

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field."""
        if event.input.id == "target":
            self._connect(event.value.strip())
        else:
            self._finish_lending()

    def _connect(self, target: str) -> None:
        if self._busy:
            return
        if not target:
            self._tell("Paste the invite that the operator gave you, or type HOST:PORT.")
            return
        self._busy = True
        self._target = target
        self._tell("")
        self.query_one("#progress", Static).update("connecting …")
        cast("SwarmApp", self.app).bridge.run(lambda backend: backend.connect(target), self._connecting)

    def _connecting(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Progress():
                    self.query_one("#progress", Static).update(describe_progress(event))
                case Connected():
                    self._busy = False
                    self.query_one("#progress", Static).update("")
                    self._show_models(event)
                case Failed():
                    self._busy = False
                    self.query_one("#progress", Static).update("")
                    self._tell(clean(event.message))
                case _:
                    pass

    # Step 2: which model

    def _show_models(self, event: Connected) -> None:
        self._models = event.models
        palette = self.palette
        operator = Text("A directory on this machine.", palette.muted)
        if event.operator:
            known = ("  as expected", palette.good)
            seen = known if event.known else ("  new on this machine", palette.warning)
            key = (clean_line(event.operator, 60), palette.text)
            operator = Text.assemble(("Operator  ", palette.muted), key, seen)
        self.query_one("#operator", Static).update(operator)
        options = self.query_one("#models", OptionList)
        options.clear_options()
        for at, model in enumerate(self._models):
            options.add_option(Option(describe(model, palette), id=str(at)))
        names = [model.name for model in self._models]
        if names:
            options.highlighted = names.index(self._model) if self._model in names else 0
        else:
            self._tell("This swarm serves no model yet; its operator runs `swarm serve`.")
        self._fit(options.highlighted or 0)
        self.query_one("#steps", ContentSwitcher).current = "which"
        options.focus()

    def _fit(self, index: int) -> None:
        if index >= len(self._models):
            return
        self.query_one("#fits", Static).update(fits(self._models[index], self._machine))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Say whether it fits."""
        if event.option_list.id == "models":
            self._fit(event.option_index)
        elif event.option_list.id == "lending":
            kind = _LENDING[event.option_index][0]
            self.query_one("#disk", Input).disabled = kind not in ("disk", "both")
            self.query_one("#ram", Input).disabled = kind not in ("compute", "both")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter in a list."""
        index = event.option_index
        if event.option_list.id == "found":
            self.query_one("#target", Input).value = self._found[index].address
            self._connect(self._found[index].address)
        elif event.option_list.id == "models":
            self._model = self._models[index].name
            if self._ask_lending:
                self._show_lending()
            else:
                self.dismiss(Answers(self._target, self._model, "", 0, 0))
        else:
            self._finish_lending()

    # Step 3: how to take part

    def _show_lending(self) -> None:
        options = self.query_one("#lending", OptionList)
        options.clear_options()
        palette = self.palette
        for kind, name, meaning in _LENDING:
            line = Text.assemble((name.ljust(14), palette.text), (meaning, palette.muted))
            options.add_option(Option(line, id=kind or "none"))
        options.highlighted = 0
        self.query_one("#steps", ContentSwitcher).current = "lend"
        options.focus()

    def _finish_lending(self) -> None:
        kind = _LENDING[self.query_one("#lending", OptionList).highlighted or 0][0]
        try:
            disk = parse_bytes(self.query_one("#disk", Input).value) if kind in ("disk", "both") else 0
            ram = parse_bytes(self.query_one("#ram", Input).value) if kind in ("compute", "both") else 0
        except ValueError as error:
            self._tell(f"{error}.")
            return
        if disk > self._machine.free_disk_bytes:
            self._tell(f"Only {format_bytes(self._machine.free_disk_bytes)} of disk are free.")
            return
        if self._machine.ram_bytes and ram > self._machine.ram_bytes:
            self._tell(f"This machine has {format_bytes(self._machine.ram_bytes)} of memory.")
            return
        self.dismiss(Answers(self._target, self._model, kind, disk, ram))

    def _tell(self, problem: str) -> None:
        widget = self.query_one("#problem", Static)
        widget.update(problem)
        widget.display = bool(problem)
        if problem:
            self.call_after_refresh(widget.scroll_visible)

    def action_into_list(self) -> None:
        """Down from the field into what was found."""
        if self._found and self.query_one("#steps", ContentSwitcher).current == "where":
            self.query_one("#found", OptionList).focus()

    def action_back(self) -> None:
        """A step back; from the first one, stop connecting."""
        steps = self.query_one("#steps", ContentSwitcher)
        self._tell("")
        if self._busy:
            backend = cast("SwarmApp", self.app).bridge.backend
            if backend is not None:
                backend.stop()
        elif steps.current == "which":
            steps.current = "where"
            self.query_one("#target", Input).focus()
        elif steps.current == "lend":
            steps.current = "which"
            self.query_one("#models", OptionList).focus()


def fits(model: ModelView, machine: Machine) -> str:
    """What a model would take of this machine, in a sentence."""
    free = format_bytes(machine.free_disk_bytes)
    fetch = model.to_fetch_bytes
    if fetch is None:
        return f"Fetches what it reads, at most {format_bytes(model.size_bytes)}; {free} of disk are free."
    if not fetch:
        return "Nothing is fetched before the first answer."
    text = f"Fetches {format_bytes(fetch)} before the first answer; {free} of disk are free"
    return f"{text}, which is too little." if fetch > machine.free_disk_bytes else f"{text}."
