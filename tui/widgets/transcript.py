"""The scrollback: a view of a `tui.document.Document` that draws only the lines in sight."""

from __future__ import annotations

import time

from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer

from swarm.units import format_seconds
from tui import document
from tui.blocks import Block, Splitter, split
from tui.document import Document, Hit, Piece, Render
from tui.palette import Palette
from tui.theme import palette_of

FRAME_S = 0.08
"""Shortest time between two renderings of a growing reply."""
_SHARE_OF_A_CORE = 0.2
_SLICE_S = 0.01
_THINKING = "thinking…"
_BITE = 1000
"""Characters that are rendered before looking at the clock again."""


class Transcript(ScrollView, can_focus=False):
    """Messages, replies and notes, top to bottom; follows the end unless the user scrolled away."""

    DEFAULT_CSS = """
    Transcript { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: scroll; }
    """

    def __init__(self, *, fold_reasoning: bool = True) -> None:
        super().__init__(id="transcript")
        self.fold_reasoning = fold_reasoning
        self.document = Document(palette_of(""))
        self._group = 0
        self._splitter: Splitter | None = None
        self._stable = 0
        self._begun = 0
        self._notes: list[tuple[str, str]] = []
        """What was said beside the reply that grows, and of what kind it is."""
        self._pending = ""
        self._ending: str | None = None
        self._thinking: Piece | None = None
        self._thought = ""
        self._thought_began = 0.0
        self._thought_summary = ""
        self._frame: Timer | None = None
        self._settling: Timer | None = None
        self._hits: list[Hit] = []
        self._hit = -1
        self._follow = True

    @property
    def palette(self) -> Palette:
        """The palette of the application's theme."""
        return palette_of(self.app.theme)

    def on_mount(self) -> None:
        """Take the width and colours of the screen."""
        self._restyle()
        self.app.theme_changed_signal.subscribe(self, lambda _: self._restyle())

    # Contents

    def add(self, render: Render) -> Piece:
        """Put something at the end."""
        self.finish_drawing()
        piece = Piece(render, self._group)
        following = self._following()
        if self._splitter is None:
            self.document.append(piece)
        else:  # above what may still change of the reply that grows
            self.document.replace_tail(self._stable, [piece, *self.document.pieces[self._stable :]])
            self._stable += 1
        self._grown(following)
        return piece

    def add_message(self, text: str) -> None:
        """What the user said; the view goes to the end."""
        self._group += 1
        self.add(document.message(text))
        self.scroll_end(animate=False, immediate=True, x_axis=False)

    def add_note(self, text: str, kind: str = "note") -> None:
        """Something the program says."""
        self.finish_drawing()
        said = len(self._notes) + (self._thinking is not None)
        opens = self._splitter is not None and self._stable - self._begun == said
        self.add(document.note(text, kind, opens=opens))
        if self._splitter is not None:
            self._notes.append((text, kind))

    def add_reply(self, reasoning: str, text: str, footer: str = "") -> None:
        """A whole reply, of a conversation that was reopened."""
        self.finish_drawing()
        if reasoning:
            self.begin_reply()
            self._thought = reasoning
            self._end_thinking("thought")
        following = self._following()
        for block in split(text):
            self.document.append(Piece(document.block(block), self._group))
        self.document.append(Piece(document.footer(footer), self._group))
        self._splitter = None
        self._grown(following)

    def begin_reply(self) -> None:
        """A reply will come, piece by piece."""
        self.finish_drawing()
        self._begun, self._notes = len(self.document.pieces), []
        self._begin()

    def take_back(self, reasoning: str, text: str) -> None:
        """Only this much of the growing reply stands; what was said beside it stays."""
        if self._splitter is None:
            return
        notes = [Piece(document.note(text, kind, opens=True), self._group) for text, kind in self._notes]
        self.document.replace_tail(self._begun, notes)
        self._begin()
        if reasoning:
            self.add_reasoning(reasoning)
        if text:
            self.add_text(text)
        self._grown(self._following())

    def _begin(self) -> None:
        self._splitter = Splitter()
        self._stable = len(self.document.pieces)
        self._thinking, self._thought, self._thought_summary = None, "", ""
        self._pending, self._ending = "", None

    def add_reasoning(self, piece: str) -> None:
        """The model thinks."""
        if self._thinking is None:
            self._thought_began = time.monotonic()
            self._thought_summary = _THINKING
            self._thinking = self.add(self._reasoning(running=True))
            self._stable = len(self.document.pieces)
        self._thought += piece
        self._schedule()

    def add_text(self, piece: str) -> None:
        """The model speaks."""
        if self._thinks():
            self._end_thinking(f"thought for {format_seconds(time.monotonic() - self._thought_began)}")
        self._pending += piece
        self._schedule()

    def end_reply(self, footer: str) -> None:
        """The reply is complete."""
        if self._splitter is None:
            return
        if self._thinks():
            self._end_thinking(f"thought for {format_seconds(time.monotonic() - self._thought_began)}")
        self._ending = footer
        self._draw_frame()

    def finish_drawing(self) -> None:
        """Draw what is left of a reply that has ended, before anything is put under it."""
        while self._ending is not None:
            self._draw_frame()

    def clear(self) -> None:
        """Another conversation begins."""
        self.document.clear()
        self._splitter, self._thinking, self._pending, self._ending = None, None, "", None
        self._hits, self._hit = [], -1
        self._grown(True)

    # Reasoning

    def _reasoning(self, *, running: bool, folded: bool | None = None) -> Render:
        hide = self.fold_reasoning if folded is None else folded
        return document.reasoning(self._thought, folded=hide, running=running, summary=self._thought_summary)

    def _end_thinking(self, summary: str) -> None:
        self._thought_summary = summary
        render = self._reasoning(running=False)
        if self._thinking is None:
            self._thinking = self.add(render)
        self._make_foldable(self._thinking, self._thought, summary)
        self._stable = len(self.document.pieces)

    def _make_foldable(self, piece: Piece, thought: str, summary: str) -> None:
        state = {"folded": self.fold_reasoning}

        def render(width: int, palette: Palette) -> list[Text]:
            make = document.reasoning(thought, folded=state["folded"], running=False, summary=summary)
            return make(width, palette)

        def fold(folded: bool | None) -> None:
            state["folded"] = not state["folded"] if folded is None else folded

        piece.fold = fold
        self.document.change(piece, render)
        self._grown(self._following())

    def fold_all(self, folded: bool) -> None:
        """Fold or unfold the reasoning of every reply, and of those to come."""
        self.fold_reasoning = folded
        following = self._following()
        for piece in self.document.pieces:
            if piece.fold is not None:
                piece.fold(folded)
                self.document.change(piece)
        if self._thinking is not None and self._thinks():
            self.document.change(self._thinking, self._reasoning(running=True))
        self._grown(following)

    def on_click(self, event: events.Click) -> None:
        """A click on a folded line unfolds it."""
        line = int(self.scroll_offset.y) + event.y
        if line >= self.document.height:
            return
        index, within = self.document.locate(line)
        piece = self.document.pieces[index]
        if piece.fold is not None and within == 0:
            piece.fold(None)
            self.document.change(piece)
            self._grown(False)

    # Frames

    def _schedule(self) -> None:
        if self._frame is None:
            self._frame = self.set_timer(FRAME_S, self._draw_frame)

    def _draw_frame(self) -> None:
        """Render some of what came since the last frame, then rest so long that a core is hardly used."""
        began = time.perf_counter()
        if self._frame is not None:
            self._frame.stop()
            self._frame = None
        if self._splitter is None:
            return
        following = self._following()
        if self._thinking is not None and self._thinks() and not self.fold_reasoning:
            self.document.change(self._thinking, self._reasoning(running=True))
        while self._pending and time.perf_counter() - began < _SLICE_S:
            bite, self._pending = self._pending[:_BITE], self._pending[_BITE:]
            self._settle_blocks(self._splitter.feed(bite))
        if not self._pending and self._ending is not None:
            self._settle_blocks(self._splitter.finish())
            self.document.append(Piece(document.footer(self._ending), self._group))
            self._splitter = self._ending = None
        self._grown(following)
        if self._splitter is not None:
            rest = (time.perf_counter() - began) / _SHARE_OF_A_CORE
            self._frame = self.set_timer(max(FRAME_S, rest), self._draw_again)

    def _settle_blocks(self, done: list[Block]) -> None:
        """Blocks that are complete, and then what may still change, at the end of the document."""
        assert self._splitter is not None
        pieces = [Piece(document.block(block), self._group) for block in done]
        tail = [Piece(document.block(block), self._group) for block in self._splitter.tail()]
        self.document.replace_tail(self._stable, pieces + tail)
        self._stable += len(pieces)

    def _draw_again(self) -> None:
        self._frame = None
        if self._pending or self._ending is not None or (self._thinks() and not self.fold_reasoning):
            self._draw_frame()

    def _thinks(self) -> bool:
        return self._thinking is not None and self._thought_summary == _THINKING

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Whether the end is followed depends on where the user scrolled to, not on what grew since."""
        super().watch_scroll_y(old_value, new_value)
        self._follow = new_value >= self.max_scroll_y - 1

    def _following(self) -> bool:
        return self._follow or self.max_scroll_y == 0

    def _grown(self, following: bool) -> None:
        size = Size(self.document.width, self.document.height)
        if size != self.virtual_size:
            self.virtual_size = size
        if following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        self.refresh()

    # Size and colours

    def on_resize(self) -> None:
        """The terminal has another size."""
        self._restyle()

    def _restyle(self) -> None:
        width = max(1, self.scrollable_content_region.width)
        following = self._following()
        top = int(self.scroll_offset.y)
        anchor = self.document.locate(top)[0] if 0 <= top < self.document.height else 0
        self.document.restyle(width, self.palette)
        self._anchor(anchor, following)
        if self._settling is None and self.document.pieces:
            self._settling = self.set_timer(_SLICE_S, self._settle)

    def _anchor(self, index: int, following: bool) -> None:
        """Keep the same piece at the top, or the end at the bottom."""
        height = self.size.height
        first = self.document.height - height if following else self.document.top(index)
        self.document.render_around(max(0, first), height)
        self._grown(following)
        if not following:
            self.scroll_to(y=self.document.top(index), animate=False, immediate=True)

    def _settle(self) -> None:
        self._settling = None
        following = self._following()
        top = int(self.scroll_offset.y)
        anchor = self.document.locate(top)[0] if 0 <= top < self.document.height else 0
        done = self.document.settle(_SLICE_S)
        self._anchor(anchor, following)
        if not done:
            self._settling = self.set_timer(_SLICE_S / _SHARE_OF_A_CORE, self._settle)

    # Search

    def find(self, text: str) -> int:
        """Look for a text; the last place is shown first. How many there are."""
        self._hits = self.document.find(text)
        self._hit = len(self._hits)
        self.find_next(-1)
        return len(self._hits)

    def find_next(self, step: int) -> tuple[int, int]:
        """Show the next place (1) or the one before (-1); its number from 1, and how many there are."""
        if not self._hits:
            self.refresh()
            return 0, 0
        self._hit = (self._hit + step) % len(self._hits)
        line = self._hits[self._hit].line
        self.scroll_to(y=max(0, line - self.size.height // 2), animate=False, immediate=True)
        self.refresh()
        return self._hit + 1, len(self._hits)

    def end_find(self) -> None:
        """No more marks."""
        self._hits, self._hit = [], -1
        self.refresh()

    # Drawing

    def render_line(self, y: int) -> Strip:
        """One line of what is in sight."""
        line = int(self.scroll_offset.y) + y
        width = self.size.width
        text = self.document.line(line)
        selection = self.text_selection
        hits = [hit for hit in self._hits if hit.line == line]
        if selection is not None or hits:
            text = text.copy()
            for hit in hits:
                text.stylize(self._hit_style(hit), hit.start, hit.end)
            if selection is not None and (span := selection.get_span(line)) is not None:
                start, end = span
                style = self.screen.get_component_rich_style("screen--selection")
                text.stylize(style, start, len(text) if end == -1 else end)
        strip = Strip(text.render(self.app.console), text.cell_len)
        strip = strip.crop_extend(0, width, None).apply_style(self.rich_style)
        return strip.apply_offsets(0, line)

    def _hit_style(self, hit: Hit) -> Style:
        current = 0 <= self._hit < len(self._hits) and self._hits[self._hit] is hit
        return self.palette.found if current else self.palette.found + Style(dim=True)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text."""
        return selection.extract(self.document.text()), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Show the selection."""
        self.refresh()
