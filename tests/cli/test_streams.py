"""Standard streams that are full, closed, or left by their reader, and a Ctrl-C before there is a program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SWARM = f"{sys.executable} -m swarm"


def shell(text: str, home: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Runs a line of a shell in which $SWARM is the program."""
    environment = os.environ | {"SWARM_HOME": str(home), "PYTHONPATH": str(ROOT), "SWARM": SWARM} | variables
    return subprocess.run(
        ["bash", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        env=environment, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "reason"), [("> /dev/full", "the disk it goes to is full"), (">&-", "it is closed")]
)
@pytest.mark.parametrize("command", ["--help", "cache list --json"])
def test_output_that_nobody_takes_is_a_failure_in_one_line(
    command: str, how: str, reason: str, home: Path
) -> None:
    done = shell(f"$SWARM {command} {how}", home)
    assert done.returncode == 1
    assert done.stderr.startswith("swarm: standard output could not be written: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_failure(home: Path) -> None:
    done = shell("set -o pipefail; { sleep 0.2; $SWARM --help; } | true", home)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_without_standard_error_the_exit_code_is_the_same(unbuffered: str, home: Path) -> None:
    for how in ("2>&-", "2> /dev/full"):
        done = shell(f"$SWARM frobnicate {how}", home, PYTHONUNBUFFERED=unbuffered)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_without_standard_input_there_are_no_token_ids(home: Path) -> None:
    done = shell("$SWARM logits --local . --ids - --out out.npy <&-", home)
    assert (done.returncode, done.stderr) == (1, "swarm: standard input holds no token ids.\n")


def test_what_the_terminal_cannot_show_is_replaced(home: Path) -> None:
    done = shell("$SWARM caf\u00e9", home, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "caf?" in done.stderr


@pytest.mark.parametrize("module", ["signal", "click"])
def test_an_interrupt_while_modules_are_imported_is_quiet(module: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("import _signal\n_signal.raise_signal(2)\nraise SystemExit(5)\n")
    done = subprocess.run(
        [sys.executable, "-m", "swarm", "--help"],
        capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"SWARM_HOME": str(home), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        # As at a terminal, also where the tests run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
