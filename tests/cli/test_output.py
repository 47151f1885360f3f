"""What commands show: tables of cleaned cells, progress in a log, a line that is written over."""

import pytest

from swarm.cli import output
from swarm.cli.output import _Lines, byte_progress, emit_json, say, table
from swarm.cli.reports import StatusLine


def test_tables_line_up_and_hold_no_control_characters() -> None:
    shown = table(("NAME", "SIZE"), [("a", "1.0 GB"), ("\x1b[31mred", "2 B")])
    lines = shown.splitlines()
    assert lines[0].startswith("NAME")
    assert len({line.index(cell) for line, cell in zip(lines, ("SIZE", "1.0 GB", "2 B"), strict=True)}) == 1
    assert "\x1b" not in shown


def test_wide_characters_take_two_cells() -> None:
    lines = table(("NAME", "SIZE"), [("模型", "1"), ("four", "2")]).splitlines()
    assert lines == ["NAME  SIZE", "模型  1", "four  2"]


def test_news_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    say("peer \x1b]0;owned\x07 said")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b" not in captured.err
    assert "\x07" not in captured.err


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"text": "zwei\nZeilen – ü"})
    assert capsys.readouterr().out == '{"text": "zwei\\nZeilen – ü"}\n'


def test_in_a_log_progress_is_reported_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    lines = _Lines("Hashing", clock=lambda: now_s)
    for second in range(31):
        now_s = float(second)
        lines.show(second * 1_000_000, 100_000_000, "model.safetensors")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0] == "Hashing: 10.0 MB of 100 MB, 1.0 MB/s model.safetensors"


def test_short_work_says_nothing_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_progress("Hashing") as show:
        show(1, 2, "")
        show(2, 2, "")
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with byte_progress("Hashing [bold]x") as show:
        show(1, 2, "a\x1b[2Jb")
    drawn = capsys.readouterr().err
    assert "[bold]x" in drawn
    assert "\x1b[2J" not in drawn


def test_a_status_line_is_written_over_and_taken_away() -> None:
    written: list[str] = []
    line = StatusLine(written.append, live=True)
    line.clear()
    assert written == []
    line.show("one")
    line.show("two")
    line.clear()
    assert written == ["\r\x1b[Kone", "\r\x1b[Ktwo", "\r\x1b[K"]
    StatusLine(written.append, live=False).show("three")
    assert len(written) == 3
