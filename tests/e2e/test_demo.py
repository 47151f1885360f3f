"""`swarm demo` without a terminal: the whole tour, the same answer at every step, and nothing left behind."""

import os
import subprocess
from pathlib import Path

from tests.e2e.processes import command, environment

STEPS = 5


def demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the demonstration in a home and a scratch directory of its own; checks that both are empty afterwards."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shown = subprocess.run(
        command("demo", *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(tmp_path / "home") | {"TMPDIR": str(scratch)},
        check=False,
    )
    assert list(scratch.iterdir()) == []
    assert not _left_behind(scratch)
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []
    return shown


def test_the_tour_keeps_its_promises(tmp_path: Path) -> None:
    shown = demo(tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    lines = shown.stdout.splitlines()
    answers = [lines[at + 1] for at, line in enumerate(lines) if line.strip() == "> What is a tracker?"]
    assert len(answers) == STEPS
    assert len(set(answers)) == 1
    assert answers[0].strip()
    assert [line[:3] for line in lines if line[1:2] == "/"] == [
        f"{step}/{STEPS}" for step in range(1, STEPS + 1)
    ]
    assert "it signed a wrong answer" in shown.stdout
    assert "0 by donors" in lines[-3]


def test_one_question_can_be_asked(tmp_path: Path) -> None:
    shown = demo(tmp_path, "--question", "What is a tracker?")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip()
    assert "Asking: What is a tracker?" in shown.stderr


def _left_behind(folder: Path) -> list[str]:
    """Command lines of processes that still speak of a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if str(folder) in line:
                found.append(line)
    return found
