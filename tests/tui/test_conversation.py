"""Conversations survive their files, whatever was said in them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.backend import Turn
from tui.cleaner import clean
from tui.conversation import (
    Conversation,
    ConversationError,
    Shelf,
    as_json,
    dump,
    export,
    parse,
    readable,
    safe_name,
    title_of,
)
from tui.options import Sampling

TALK = Conversation(
    [Turn("user", "Hello?"), Turn("assistant", "Hi.\n\n```py\nx\n```", "They greet."), Turn("user", "")],
    title="Hello --> there",
    model="olmoe",
    system="Be brief.",
    sampling=Sampling(temperature=0.5, seed=3),
)
texts = st.one_of(
    st.text().map(clean),
    st.lists(
        st.sampled_from(["<!-- swarm:user -->", "\\<!-- swarm:x -->", "\n", "", "a", "-->", "\\", " "]),
        max_size=8,
    ).map("\n".join),
)


def test_a_file_gives_back_the_conversation() -> None:
    assert parse(dump(TALK), "x") == TALK


@settings(derandomize=True)
@given(st.lists(st.tuples(texts, texts, texts), max_size=4), texts, texts)
def test_whatever_was_said(pairs: list[tuple[str, str, str]], system: str, title: str) -> None:
    turns = [
        turn
        for question, thought, answer in pairs
        for turn in (Turn("user", question), Turn("assistant", answer, thought))
    ]
    talk = Conversation(turns, title=title, system=system)
    assert parse(dump(talk), "x") == talk


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first line"),
        ("# Notes", "first line"),
        ("<!-- swarm:user -->", "first line"),
        ("<!-- swarm:conversation -->", "damaged"),
        ("<!-- swarm:conversation {} -->", "damaged"),
        ('<!-- swarm:conversation {"version": 2} -->', "later version"),
        (
            '<!-- swarm:conversation {"version": 1, "title": "", "model": "", "sampling": {"x": 1}} -->',
            "damaged",
        ),
        ("<!-- swarm:conversation [1] -->", "damaged"),
        ('<!-- swarm:conversation {"version":1,"title":"","model":""} -->\n<!-- swarm:odd -->\nx', "odd"),
    ],
)
def test_other_files_are_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ConversationError, match=why) as caught:
        parse(text, "notes.md")
    assert "notes.md" in str(caught.value)


def test_the_shelf_lists_newest_first_and_loads(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "talks")
    assert shelf.names() == []
    first, second = shelf.save("one", TALK), shelf.save("two/../three", TALK)
    assert second.parent == first.parent
    assert (first.stat().st_mode & 0o777) == 0o600
    assert set(shelf.names()) == {"one", "two-..-three"}
    assert shelf.load("one") == TALK
    assert shelf.load(str(first)) == TALK
    with pytest.raises(ConversationError, match="no saved conversation zero"):
        shelf.load("zero")
    (tmp_path / "talks" / "bad.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ConversationError, match=r"bad\.md cannot be read"):
        shelf.load("bad")


def test_control_characters_put_into_a_file_do_not_come_out(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    path = shelf.save("x", TALK)
    path.write_text(path.read_text().replace("Hello?", "\x1b]0;x\x07"))
    assert shelf.load("x").turns[0].text == "␛]0;x␇"


def test_new_names_are_never_taken(tmp_path: Path) -> None:
    shelf, now = Shelf(tmp_path), datetime(2026, 1, 2, 3)
    names = []
    for _ in range(3):
        names.append(shelf.new_name(now, "What/is: this?"))
        shelf.save(names[-1], TALK)
    assert names == ["2026-01-02 What-is- this", "2026-01-02 What-is- this 2", "2026-01-02 What-is- this 3"]


@pytest.mark.parametrize("name", ["", "...", "/", "../../etc/passwd", "a\0b", "x" * 500, "中" * 200, " . "])
def test_names_are_safe_for_files(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert "/" not in safe
    assert not safe.startswith(".")
    assert len(safe.encode()) <= 200


def test_titles_are_short_and_end_at_a_word() -> None:
    assert title_of("Why?") == "Why?"
    assert title_of("word " * 30) == "word word word word word word word word word"


def test_exports(tmp_path: Path) -> None:
    export(TALK, tmp_path / "a.json")
    export(TALK, tmp_path / "a.txt")
    export(TALK, tmp_path / "a.md")
    roles = [message["role"] for message in json.loads((tmp_path / "a.json").read_text())["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert (tmp_path / "a.txt").read_text() == readable(TALK)
    assert parse((tmp_path / "a.md").read_text(), "a") == TALK
    assert json.loads(as_json(TALK))["messages"][2]["reasoning_content"] == "They greet."


def test_questions_are_taken_back() -> None:
    talk = Conversation(
        [Turn("user", "a"), Turn("assistant", "b"), Turn("user", "c"), Turn("assistant", "d")]
    )
    assert talk.drop_reply()
    assert talk.last_reply is None
    assert talk.take_back() == "c"
    assert talk.last_reply == Turn("assistant", "b")
    assert talk.take_back() == "a"
    assert talk.take_back() is None
    assert not talk.drop_reply()
    assert Conversation(system="s").prompt() == [Turn("system", "s")]
