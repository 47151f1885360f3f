"""The scrollback: heights, lookups, resizing, searching."""

from __future__ import annotations

import pytest
from rich.text import Text

from tui import document
from tui.blocks import split
from tui.document import Document, Piece
from tui.palette import DARK, LIGHT, Palette


def lines(*texts: str) -> Piece:
    return Piece(lambda width, palette: [Text(text[:width]) for text in texts])


def counted(text: str, log: list[int]) -> Piece:
    def render(width: int, palette: Palette) -> list[Text]:
        log.append(width)
        return [Text(text[at : at + width]) for at in range(0, len(text), width)]

    return Piece(render)


def filled() -> Document:
    made = Document(DARK, 10)
    for piece in (lines("a", "b"), lines("c"), lines("d", "e", "f")):
        made.append(piece)
    return made


def test_lines_are_found_by_number() -> None:
    made = filled()
    assert made.height == 6
    assert [made.line(at).plain for at in range(7)] == ["a", "b", "c", "d", "e", "f", ""]
    assert made.locate(0) == (0, 0)
    assert made.locate(2) == (1, 0)
    assert made.locate(5) == (2, 2)
    for beyond in (-1, 6):
        with pytest.raises(IndexError):
            made.locate(beyond)


def test_the_tail_is_replaced() -> None:
    made = filled()
    made.replace_tail(1, [lines("x")])
    assert made.text() == "a\nb\nx"
    made.clear()
    assert made.height == 0
    assert made.line(0).plain == ""


def test_pieces_are_rendered_once_a_width() -> None:
    log: list[int] = []
    made = Document(DARK, 10)
    made.append(counted("x" * 20, log))
    assert made.height == 2
    assert [made.line(0).plain, made.line(1).plain] == ["x" * 10] * 2
    made.restyle(10, DARK)
    assert log == [10]
    made.restyle(5, DARK)
    assert made.height == 4
    assert log == [10]
    assert made.line(3).plain == "xxxxx"
    assert log == [10, 5]
    made.restyle(5, LIGHT)
    assert made.settle(1.0)
    assert log == [10, 5, 5]


def test_settling_takes_slices_and_ends() -> None:
    log: list[int] = []
    made = Document(DARK, 10)
    for _ in range(5):
        made.append(counted("x" * 20, log))
    made.restyle(4, DARK)
    turns = 0
    while not made.settle(0.0):
        turns += 1
    assert turns == 4
    assert made.height == 25


def test_what_is_in_sight_is_rendered_first() -> None:
    log: list[int] = []
    made = Document(DARK, 10)
    for _ in range(10):
        made.append(counted("x" * 30, log))
    made.restyle(3, DARK)
    log.clear()
    assert not made.render_around(50, 10)
    assert log == [3]


def test_find_ignores_case_and_gives_places() -> None:
    made = Document(DARK, 20)
    made.append(lines("Straße straßE", "nothing"))
    made.append(lines("a STRASSE İx stra"))
    assert [(hit.line, hit.start) for hit in made.find("strass")] == [(2, 2)]
    assert [(hit.line, hit.start) for hit in made.find("straß")] == [(0, 0), (0, 7)]
    assert [(hit.line, hit.start, hit.end) for hit in made.find("NOTH")] == [(1, 0, 4)]
    assert made.find("") == []
    assert made.find("absent") == []


def test_a_message_stands_beside_a_bar() -> None:
    shown = [line.plain for line in document.message("hello there")(12, DARK)]
    assert shown == ["", "  ▍ hello", "  ▍ there", ""]


def test_reasoning_folds() -> None:
    folded = document.reasoning("because", folded=True, running=False, summary="thought for 2 s")
    shown = document.reasoning("because", folded=False, running=False, summary="thought for 2 s")
    assert [line.plain for line in folded(40, DARK)] == ["  ▸ thought for 2 s", ""]
    assert [line.plain for line in shown(40, DARK)] == ["  ▾ thought for 2 s", "  │ because", ""]


def test_notes_have_a_mark_and_markup_is_text() -> None:
    assert [line.plain for line in document.note("[b]x[/b]", "error")(40, DARK)] == ["", "  ✗ [b]x[/b]"]
    assert document.note("x", "warning")(40, DARK)[1].plain == "  ! x"
    assert document.note("x")(40, DARK)[1].plain == "  · x"


def test_text_has_margins_and_a_widest_width() -> None:
    assert document.text_width(80) == 76
    assert document.text_width(300) == 100
    assert document.text_width(1) == 1
    block = split("word " * 60)[0]
    assert max(line.cell_len for line in document.block(block)(300, DARK)) <= 102
