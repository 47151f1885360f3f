"""Markdown as lines: what it looks like, that it fits, that it is never anything but text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.tui.harmless import harmless
from tui.blocks import split
from tui.cleaner import clean
from tui.markdown import render, render_block
from tui.palette import DARK, LIGHT, TERMINAL


def plain(source: str, width: int = 40) -> list[str]:
    return [line.plain.rstrip() for line in render(source, width, DARK)]


def test_a_paragraph_wraps_at_words() -> None:
    assert plain("one two three four", 9) == ["one two", "three", "four"]


def test_soft_breaks_are_spaces_and_hard_ones_are_not() -> None:
    assert plain("a\nb  \nc") == ["a b", "c"]


def test_lists() -> None:
    assert plain("- a\n- b\n  1. c\n  2. d") == ["• a", "• b", "  1. c", "  2. d"]
    assert plain("9. a\n10. b") == ["9.  a", "10. b"]
    assert plain("- a\n\n- b") == ["• a", "", "• b"]


def test_headings_quotes_and_rules() -> None:
    assert plain("# Big") == ["Big", "───"]
    assert plain("## Less") == ["Less"]
    assert plain("> said\n> > twice") == ["│ said", "│", "│ │ twice"]
    assert plain("---", 8) == ["────────"]


def test_code_keeps_every_space_and_folds_long_lines() -> None:
    assert plain("```py\na  =  1\n\n    b\n```", 12) == ["         py", " a  =  1", "", "     b", ""]
    assert plain("```\n0123456789\n```", 8) == ["", " 012345", " 6789", ""]


def test_code_is_coloured_by_its_language() -> None:
    line = render("```python\nreturn 'x'  # y\n```", 40, DARK)[1]
    styles = {line.plain[span.start : span.end].strip(): span.style for span in line.spans}
    assert styles["return"] == DARK.syntax["Keyword"]
    assert styles["# y"] == DARK.syntax["Comment"]


def test_an_unknown_language_is_plain() -> None:
    assert plain("```no-such-language-at-all\nx\n```", 20)[1] == " x"


def test_tables_fit_and_wrap() -> None:
    table = "| name | n |\n|---|--:|\n| a long cell of words | 7 |"
    lines = plain(table, 16)
    assert lines == ["name           n", "─────────────  ─", "a long cell    7", "of words"]
    assert max(map(cell_len, lines)) <= 16


def test_links_show_where_they_lead_and_lead_nowhere() -> None:
    line = render("[here](https://example.org)", 60, DARK)[0]
    assert line.plain == "here (https://example.org)"
    assert all(getattr(span.style, "link", None) is None for span in line.spans)
    assert plain("<https://example.org>") == ["https://example.org"]


def test_html_and_console_markup_are_text() -> None:
    assert plain("<b>x</b> [red]y[/red] [@click=app.quit]z[/]") == [
        "<b>x</b> [red]y[/red]",
        "[@click=app.quit]z[/]",
    ]
    assert plain("<script>\nalert(1)\n</script>") == ["<script> alert(1) </script>"]


def test_wide_characters_fit() -> None:
    assert max(line.cell_len for line in render("~~~~😀😀\nx", 30, DARK)) == 30
    for line in render("中文字符" * 20, 15, DARK):
        assert line.cell_len <= 15


def test_all_palettes_know_every_style() -> None:
    for palette in (DARK, LIGHT, TERMINAL):
        assert render("# a\n\n`b` **c** [d](e)\n\n```py\nf = 1\n```", 30, palette)


FRAGMENTS = [
    "# ", "- ", "1. ", "> ", "```", "|", "---", "**", "`", "[a](b)", "<b>", "\n", "\n\n", "    ", "text ",
    "\\", "~~", "中", "\t", "***", "![i](j)", "&amp;", "\x1b[31m", "| a | b |\n|---|---|\n", "😀", "\u202e",
]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join), st.integers(1, 100))
def test_any_text_renders_within_its_width_and_harmless(source: str, width: int) -> None:
    for block in split(clean(source)):
        for line in render_block(block, width, DARK):
            assert harmless(line.plain)
            assert "\n" not in line.plain
            if width >= 30 and "|" not in source and source.count(">") + source.count("- ") < 5:
                assert line.cell_len <= width, (line.plain, width)
