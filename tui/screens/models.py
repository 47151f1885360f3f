"""All models of the swarm, to read about and to switch to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from swarm.units import format_bytes, format_count
from tui import report
from tui.cleaner import clean_line
from tui.palette import Palette
from tui.screens.panel import Panel, paragraph
from tui.status import join
from tui.views import ModelView


class ModelsScreen(Panel[str]):
    """Choose a model; the result is its name."""

    TITLE_TEXT = "Models"
    KEYS_TEXT = "Enter switches · Esc closes"
    DEFAULT_CSS = """
    ModelsScreen OptionList { height: auto; max-height: 100%; }
    """
    AUTO_FOCUS: ClassVar[str] = "OptionList"

    def __init__(self, models: Sequence[ModelView]) -> None:
        super().__init__()
        self._models = models

    def body(self) -> ComposeResult:
        """A list, or why there is none."""
        if not self._models:
            yield paragraph(report.models(()).empty)
            return
        yield OptionList(id="models")

    def on_mount(self) -> None:
        """Fill the list."""
        if not self._models:
            return
        options = self.query_one(OptionList)
        for at, model in enumerate(self._models):
            options.add_option(Option(describe(model, self.palette), id=str(at)))
        current = next((at for at, model in enumerate(self._models) if model.open), 0)
        options.highlighted = current

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(self._models[int(event.option.id or 0)].name)


def describe(model: ModelView, palette: Palette) -> Text:
    """A model in two lines: name and coverage, then size and what a switch would fetch."""
    mark = ("● ", palette.accent) if model.open else ("  ", palette.muted)
    facts = [
        clean_line(model.family, 20),
        clean_line(model.format, 20),
        format_bytes(model.size_bytes),
        _experts(model),
        f"fetches {report.to_fetch(model)}",
    ]
    if not model.supported:
        state = ("this version cannot run it", palette.error)
    elif model.missing:
        state = (clean_line("missing " + ", ".join(model.missing[:4]), 80), palette.warning)
    else:
        state = ("complete", palette.good)
    name = (clean_line(model.name, 60), palette.strong + palette.text)
    return Text.assemble(mark, name, "  ", state, "\n  ", (join(facts), palette.muted))


def _experts(model: ModelView) -> str:
    if not model.layers:
        return f"{format_count(model.experts)} experts" if model.experts else ""
    return f"{format_count(model.layers)} layers of {format_count(model.experts)} experts"
