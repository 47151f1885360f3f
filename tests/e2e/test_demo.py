"""`swarm demo` without a terminal: one question, an answer, and nothing left behind."""

import os
import subprocess
from pathlib import Path

from tests.e2e.processes import command, environment


def test_it_asks_answers_and_cleans_up(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shown = subprocess.run(
        command("demo"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(tmp_path / "home") | {"TMPDIR": str(scratch)},
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip()
    assert "Asking: What is Swarm?" in shown.stderr
    assert list(scratch.iterdir()) == []
    assert not _left_behind(scratch)
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


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
