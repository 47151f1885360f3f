"""Lending starts, pauses, resumes and ends processes, and says how they fare."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tui.backend import Donation
from tui.lending import Lending, donate_command

STAYS = "import signal, sys, time; print('ready \\x1b[2J', flush=True); time.sleep(600)"
FAILS = "import sys; sys.exit(print('no such swarm; is the invite right?', file=sys.stderr) or 1)"


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def lending(program: str, log: list[tuple[str, int]]) -> Lending:
    """A lending that starts a program instead."""

    def command(kind: str, size: int, model: str) -> list[str]:
        log.append((kind, size))
        return [sys.executable, "-c", program]

    return Lending(command)


@pytest.fixture
def log() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def staying(log: list[tuple[str, int]]) -> Iterator[Lending]:
    made = lending(STAYS, log)
    yield made
    made.close()


def test_both_kinds_run_pause_and_resume(staying: Lending, log: list[tuple[str, int]]) -> None:
    assert staying.view().kind == ""
    staying.want(Donation("both", 5, 7))
    assert log == [("disk", 5), ("compute", 7)]
    until(lambda: staying.view().detail == "ready ␛[2J")
    view = staying.view()
    assert (view.state, view.disk_bytes, view.ram_bytes) == ("running", 5, 7)
    children = [child.process for child in staying._children]
    assert staying.want(Donation("both", 5, 7, paused=True)).state == "paused"
    assert all(process.poll() is not None for process in children)
    assert staying.want(Donation("both", 5, 7)).state == "running"
    staying.close()
    assert staying.view().kind == ""


def test_a_failure_is_told_in_its_own_words(log: list[tuple[str, int]]) -> None:
    failing = lending(FAILS, log)
    failing.want(Donation("compute", 0, 7))
    until(lambda: failing.view().state == "failed")
    until(lambda: failing.view().detail == "no such swarm; is the invite right?")
    failing.close()


def test_what_a_donor_tells_is_understood(log: list[tuple[str, int]]) -> None:
    events = [
        {"event": "lending", "kind": "compute", "model": "x\x1b", "ready": 3, "assigned": 9, "problem": ""},
        {"event": "served", "kind": "compute", "calls": 12, "bytes": 3000},
    ]
    told = lending(
        f"import json, time; [print(json.dumps(e), flush=True) for e in {events}]; time.sleep(600)", log
    )
    told.want(Donation("both", 5, 7))
    until(lambda: told.view().served_calls == 24)
    assert told.view().served_bytes == 6000
    assert told.view().detail == "x␛: 3 of 9 experts ready"
    told.close()


def test_the_command_holds_no_secret() -> None:
    assert donate_command("disk", 5, "")[-6:] == ["donate", "disk", "--size", "5", "--while-stdin", "--json"]
    asked = donate_command("compute", 7, "olmoe")
    assert asked[-8:] == ["donate", "compute", "--ram", "7", "--while-stdin", "--json", "--model", "olmoe"]


def test_a_donor_ends_when_its_terminal_is_killed() -> None:
    waits = "import time; from swarm.cli.donate import _end_with_stdin as end; end(None, None, True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE) as donor:
        assert donor.stdin is not None
        donor.stdin.close()  # as the system does when whoever held it is gone
        assert donor.wait(60) == -signal.SIGTERM


def test_nothing_to_start_is_an_error(tmp_path: Path) -> None:
    missing = Lending(lambda kind, size, model: [str(tmp_path / "no-such-program")])
    with pytest.raises(OSError, match="no-such-program"):
        missing.want(Donation("disk", 5))
    missing.close()
