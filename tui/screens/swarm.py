"""The network live: peers, what they hold, who is left out, what this machine lends."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from swarm.units import format_bytes
from tui import heatmap, report
from tui.cleaner import clean_line
from tui.screens.panel import Panel, lines_of
from tui.status import join, link
from tui.views import DonationView, SwarmView
from tui.widgets.tables import table_lines

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.controller import Controller

_REFRESH_S = 0.5


class SwarmScreen(Panel[None]):
    """Refreshes itself twice a second."""

    TITLE_TEXT = "Swarm"
    KEYS_TEXT = "p pauses or resumes lending · Esc closes"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("p", "pause", "Pause or resume lending", show=False)]

    def __init__(self, controller: Controller) -> None:
        super().__init__(classes="full")
        self._controller = controller
        self._shown: SwarmView | None = None

    def body(self) -> ComposeResult:
        """A page to scroll."""
        with VerticalScroll(id="page"):
            yield Static(id="swarm")

    def on_mount(self) -> None:
        """Keep it fresh."""
        self._draw()
        self.set_interval(_REFRESH_S, self._draw)

    def on_resize(self) -> None:
        """Fit it."""
        self._shown = None
        self._draw()

    def _draw(self) -> None:
        backend = cast("SwarmApp", self.app).bridge.backend
        view = backend.snapshot() if backend is not None else SwarmView()
        if view != self._shown:
            self._shown = view
            width = max(20, min(self.size.width, 112) - 6)
            self.query_one("#swarm", Static).update(lines_of(page(view, width, self)))

    def action_pause(self) -> None:
        """Pause or resume what this machine lends."""
        backend = cast("SwarmApp", self.app).bridge.backend
        lent: DonationView = backend.snapshot().donation if backend is not None else DonationView()
        word = "resume" if lent.state == "paused" else "pause"
        self._controller.submit(f"/donate {word}")


def page(view: SwarmView, width: int, panel: Panel[None]) -> list[Text]:
    """The whole page as lines."""
    palette = panel.palette
    where = [clean_line(view.model, 40), link(view), clean_line(view.address, 60)]
    operator = f"operator {clean_line(view.operator, 60)}" if view.operator else ""
    lines = [Text(join(where), palette.text)]
    if operator:
        lines.append(Text(operator, palette.muted))
    if view.fetch_rate or view.fetched_bytes:
        rate = f", now {format_bytes(view.fetch_rate)}/s" if view.fetch_rate else ""
        lines.append(Text(f"{format_bytes(view.fetched_bytes)} fetched and verified{rate}", palette.muted))
    lines += [Text(), *table_lines(report.peers(view))(width, palette)]
    if view.experts:
        lines += [Text(), Text("Experts", palette.heading), Text(report.coverage(view), palette.muted)]
        lines += heatmap.experts(view.experts, width, 32, palette)
        lines.append(heatmap.legend(palette))
    if view.ranges:
        lines += [Text(), Text("Bytes of the checkpoint, first to last", palette.heading)]
        lines.append(heatmap.ranges(view.ranges, width, palette))
    lines += [Text(), *table_lines(report.bans(view))(width, palette)]
    lines += [Text(), Text("Your share", palette.heading), Text(report.donation(view.donation), palette.text)]
    return lines
