"""No text leaves the cleaner with power over a terminal, however it was cut."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tui.harmless import harmless
from tui.cleaner import Cleaner, clean, clean_line

HOSTILE = (
    [chr(code) for code in range(0x20)]
    + [chr(code) for code in range(0x7F, 0xA0)]
    + [
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\",
        "\x1bP1$r0m\x1b\\",
        "\x9b2J",
        "\x9d52;c;eA==\x9c",
    ]
    + [
        "\x1b_apc\x1b\\",
        "\x1b^pm\x1b\\",
        "\x1bX\x1b\\",
        "\x1bc",
        "\x1b(0",
        "\x1b#8",
        "\x1b[?1049h",
        "\r\n",
        "\r",
    ]
    + [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)]
    + [
        "\u2028",
        "\u2029",
        "\ud800",
        "\udfff",
        "\ufeff",
        "\U000e0041",
        "\ufffe",
        "\U0010ffff",
        "e\u0301",
        "\u0301" * 12,
    ]
    + ["plain", "é", "中文", "👩‍🚀", "[bold]", "\t", "\n", " ", "0;", "m", "\\"]
)


def test_a_hundred_thousand_hostile_strings_come_out_harmless_however_they_are_cut() -> None:
    luck = random.Random(7)
    for _ in range(100_000):
        text = "".join(luck.choices(HOSTILE, k=luck.randint(1, 8)))
        whole = clean(text)
        assert harmless(whole), repr(text)
        cut = luck.randint(0, len(text))
        cleaner = Cleaner()
        assert cleaner.feed(text[:cut]) + cleaner.feed(text[cut:]) == whole, (text, cut)


def joined(pieces: Iterable[str]) -> str:
    """Pieces of one text, cleaned as they come."""
    cleaner = Cleaner()
    return "".join(cleaner.feed(piece) for piece in pieces)


@pytest.mark.parametrize("text", HOSTILE)
def test_cut_at_every_boundary_is_the_same(text: str) -> None:
    text = f"a{text}b\r\n{text}{text}"
    assert joined(text) == clean(text)


@settings(derandomize=True)
@given(st.text(st.characters(exclude_categories=[])), st.lists(st.integers(0, 50), max_size=5))
def test_any_text_in_any_pieces(text: str, cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[low:high] for low, high in pairwise(bounds)]
    whole = joined(pieces)
    assert whole == clean(text)
    assert harmless(whole)
    assert clean(whole) == whole


def test_what_stood_there_is_seen() -> None:
    assert clean("\x1b[31mred\x07\x9b") == "␛[31mred␇\ufffd"


def test_ordinary_text_stays() -> None:
    text = "Grüße, 中文, עברית, 👩‍🚀 \tx\n" + "e\u0301" * 3
    assert clean(text) == text


def test_newlines_of_every_kind_are_one() -> None:
    assert clean("a\r\nb\rc\u2028d\x85e") == "a\nb\nc\nd\ne"


def test_towers_of_marks_are_cut_even_in_pieces() -> None:
    assert clean("a" + "\u0301" * 100 + "b") == "a" + "\u0301" * 8 + "b"
    assert joined("a" + "\u0301" * 100 + "b") == "a" + "\u0301" * 8 + "b"


def test_a_line_is_one_line_of_bounded_length() -> None:
    assert clean_line("one\n two\x1b]0;x\x07\tthree ") == "one two␛]0;x␇ three"
    assert clean_line("x" * 1000, 10) == "x" * 9 + "…"
