"""`swarm doctor` as a command: lines for people, JSON for scripts, an exit code for both."""

import json
import subprocess
from pathlib import Path

from tests.e2e.processes import swarm


def test_it_says_what_it_found(tmp_path: Path) -> None:
    done = swarm(tmp_path, "doctor", "--port", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernels in" in done.stdout
    assert "nothing essential fails" in done.stdout.lower()


def test_scripts_read_json(tmp_path: Path) -> None:
    done = swarm(tmp_path, "doctor", "--port", "0", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"versions", "processor", "memory", "home", "FUSE", "port", "clock"} <= {
        one["subject"] for one in found
    }
    assert all(set(one) == {"subject", "state", "text", "remedy", "facts"} for one in found)


def test_a_tracker_that_is_not_there_fails_it(tmp_path: Path) -> None:
    done: subprocess.CompletedProcess[str] = swarm(tmp_path, "doctor", "--tracker", "127.0.0.1:1", "--json")
    assert done.returncode == 1
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["subject"], last["state"]) == ("tracker", "bad")
    assert last["remedy"]
    assert not list(tmp_path.iterdir())
