"""Errors whose docstrings are their messages, and text of strangers."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import SwarmError, clean_text, show, why


class ChunkIsWrong(SwarmError):
    """Peer {peer} sent bytes that are not
    chunk {chunk}; trying another.

    This is for readers of the code, {not} for users.
    """


def test_the_first_paragraph_is_the_message() -> None:
    error = ChunkIsWrong(peer="a", chunk=7)
    assert str(error) == "Peer a sent bytes that are not chunk 7; trying another."
    assert error.code == "chunk-is-wrong"
    assert error.fields == {"peer": "a", "chunk": 7}
    assert SwarmError.code == "swarm-error"


def test_fields_are_made_harmless() -> None:
    error = ChunkIsWrong(peer="\x1b]0;x\x07{chunk}\r\n", chunk=b"\xab" * 32)
    assert str(error).isprintable()
    assert "abababababababab…" in str(error)
    assert "{chunk}" in str(error)


def test_a_missing_field_is_noticed_where_it_is_raised() -> None:
    with pytest.raises(KeyError):
        ChunkIsWrong(peer="a")


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ChunkIsWrong(peer="a", chunk=7)))
    assert isinstance(error, ChunkIsWrong)
    assert str(error) == str(ChunkIsWrong(peer="a", chunk=7))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("a\tb\nc\r\nd", "a b c d"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("\x00\x07\x7f\x9b", "\ufffd" * 4),
        ("abc\u202egnp.exe", "abc\ufffdgnp.exe"),
        ("\u2066x\u2069 \ufeff", "\ufffdx\ufffd \ufffd"),
        ("\u2028\u2029", "\ufffd\ufffd"),
        ("x\udc80", "x\ufffd"),
        ("tag\U000e0041", "tag\ufffd"),
        ("👩‍👩‍👧 ❤️ ü नमस्ते", "👩‍👩‍👧 ❤️ ü नमस्ते"),
    ],
)
def test_cleaning(text: str, clean: str) -> None:
    assert clean_text(text) == clean


def test_lines_may_stay() -> None:
    assert clean_text("a\tb\nc\r\n\x1b\rd", lines=True) == "a\tb\nc\n\ufffd\ufffdd"


def test_length_may_be_bounded() -> None:
    assert clean_text("abcdef", limit=4) == "abc…"
    assert clean_text("abcd", limit=4) == "abcd"
    assert len(show("x" * 10_000)) == 500
    assert show(bytearray(b"\x01\x02")) == "0102"


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    for clean in (clean_text(text), clean_text(text, lines=True)):
        kept = clean.replace("\n", "").replace("\t", "")
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066\u2028" for c in kept)
        clean.encode()


class Unheard(SwarmError):
    """{place} does not answer: {reason}. Is it there?"""


def test_why_an_error_came_is_told_within_another_message() -> None:
    inner = Unheard(place="Kiel", reason="no route")
    assert why(inner) == "no route"
    assert why(Unheard(place="Bonn", reason=inner)) == "no route"
    assert why(OSError("disk on fire")) == "disk on fire"
