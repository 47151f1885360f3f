"""What is remembered between runs."""

from __future__ import annotations

from pathlib import Path

from tui.preferences import History, Preferences, keep, load


def test_preferences_survive(tmp_path: Path) -> None:
    path = tmp_path / "new" / "terminal.json"
    assert load(path) == Preferences()
    keep(path, theme="light")
    keep(path, lend_ram_bytes=5)
    assert load(path) == Preferences(theme="light", lend_ram_bytes=5)


def test_nonsense_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "terminal.json"
    for text in ("{", "[]", '{"theme": 7, "asked": "yes", "more": 1}'):
        path.write_text(text)
        assert load(path) == Preferences()


def test_history_goes_back_and_forward_and_keeps_the_draft(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    first = History(path)
    assert first.back("x") is None
    for text in ("one", "two\nlines", "two\nlines", "  ", "three"):
        first.add(text)
    later = History(path)
    assert later.entries == ["one", "two\nlines", "three"]
    assert [later.back("draft"), later.back("-"), later.back("-"), later.back("-")] == [
        "three",
        "two\nlines",
        "one",
        None,
    ]
    assert [later.forward(), later.forward(), later.forward(), later.forward()] == [
        "two\nlines",
        "three",
        "draft",
        None,
    ]
    assert (path.stat().st_mode & 0o777) == 0o600


def test_damaged_lines_are_left_out_and_long_histories_shortened(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'"good"\n{"no": 1}\nnot json\n\xff\n"also"\n')
    assert History(path).entries == ["good", "also"]
    path.write_text("".join(f'"{at}"\n' for at in range(2500)))
    assert len(History(path).entries) == 1000
    assert History(path).entries[-1] == "2499"
