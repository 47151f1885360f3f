"""Two processes, empty homes: over the swarm as locally, and the network may go away."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from swarm.cli.frame import run
from tests.e2e.processes import ROOT, Served, serving, swarm
from tests.e2e.tap import tapped

FOLDERS = ["olmoe", "qwen3_moe"]
QUESTION = "What would a lighthouse keeper write in her diary?"
GREEDY = ("--temperature", "0", "--max-tokens", "24")


@pytest.fixture(scope="module", params=FOLDERS)
def served(
    request: pytest.FixtureRequest, oracle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One server for all tests of a folder."""
    with serving(tmp_path_factory.mktemp("server"), oracle / str(request.param)) as it:
        yield it


def logits(
    home: Path, monkeypatch: pytest.MonkeyPatch, where: list[str], out: Path, ids: Path, weights: str
) -> str:
    """Runs `swarm logits` in this process; what it printed goes to the caller's capture."""
    monkeypatch.setenv("SWARM_HOME", str(home))
    options = ["--ids", str(ids), "--out", str(out), "--greedy", "24", "--weights", weights]
    assert run(["logits", *where, *options]) == 0
    return out.read_bytes().hex()


@pytest.mark.parametrize("weights", ["auto", "native", "q8", "q4"])
def test_logits_and_greedy_tokens_are_those_of_the_local_model_bit_for_bit(
    served: Served,
    weights: str,
    oracle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = oracle / served.model
    golden = load_file(folder / "golden.safetensors")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(golden["prompt"].tolist()))
    remote, local = tmp_path / "remote.npy", tmp_path / "local.npy"
    over_swarm = logits(tmp_path / "client", monkeypatch, [served.invite], remote, ids, weights)
    said_over_swarm = capsys.readouterr().out
    here = logits(tmp_path / "other", monkeypatch, ["--local", str(folder)], local, ids, weights)
    assert over_swarm == here
    assert said_over_swarm == capsys.readouterr().out
    if weights == "native":
        tolerance = json.loads((folder / "golden.json").read_text())["atol"]
        assert np.abs(np.load(remote) - golden["logits"]).max() <= tolerance
        assert said_over_swarm.split() == [str(token) for token in golden["greedy"]]


def test_a_chat_says_the_same_locally_over_the_swarm_and_when_the_server_is_gone(
    oracle: Path, tmp_path: Path
) -> None:
    folder, client = oracle / "olmoe", tmp_path / "client"
    local = swarm(tmp_path / "local", "chat", "--local", folder, *GREEDY, stdin=QUESTION)
    assert local.returncode == 0, local.stderr
    with serving(tmp_path / "server", folder) as served:
        online = swarm(client, "chat", served.invite, *GREEDY, stdin=QUESTION)
        assert served.running.stop() == 0
    assert online.returncode == 0, online.stderr
    offline = swarm(client, "chat", served.invite, *GREEDY, stdin=QUESTION)
    assert offline.returncode == 0, offline.stderr
    assert local.stdout.strip()
    assert online.stdout == local.stdout
    assert offline.stdout == local.stdout
    assert "Offline" in offline.stderr
    assert "version 1" in offline.stderr


def state(folder: Path) -> dict[Path, tuple[int, ...]]:
    """All that tells whether something in a folder was made, removed, written to, renamed or given another mode."""
    return {
        path: (found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
        for found in (path.stat(),)
    }


def test_serving_and_chatting_leave_the_models_directory_as_it_is(oracle: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(oracle / "olmoe", tmp_path / "model"))
    (model / "deeper").mkdir()
    before = state(model)
    # So little memory that experts are kept in packed form on disk.
    local = swarm(
        tmp_path / "local", "chat", "--local", model, "--expert-ram", "40kB", *GREEDY, stdin=QUESTION
    )
    assert local.returncode == 0, local.stderr
    assert any((tmp_path / "local").rglob("packed/*"))
    assert state(model) == before
    for _ in range(2):
        with serving(tmp_path / "server", model) as served:
            served.running.event("executing")
            online = swarm(tmp_path / "client", "chat", served.invite, *GREEDY, stdin=QUESTION)
            assert served.running.stop() == 0
        assert online.returncode == 0, online.stderr
        assert state(model) == before


def test_what_the_server_ran_can_be_asked_again_when_it_is_gone(tmp_path: Path) -> None:
    folder, client = ROOT / "swarm" / "demo" / "model", tmp_path / "client"  # of several chunks
    with serving(tmp_path / "server", folder) as served:
        served.running.event("executing")
        online = swarm(client, "chat", served.invite, *GREEDY, stdin="What is a tracker?\n")
        assert served.running.stop() == 0
    offline = swarm(client, "chat", served.invite, *GREEDY, stdin="What is a tracker?\n")
    assert online.returncode == offline.returncode == 0, offline.stderr
    assert "tracker" in online.stdout
    assert offline.stdout == online.stdout


def test_a_client_that_was_never_online_says_that_nothing_is_there(oracle: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "server", oracle / "olmoe") as served:
        served.running.stop()
    shown = swarm(tmp_path / "client", "chat", served.invite, stdin=QUESTION)
    assert shown.returncode != 0
    assert served.address in shown.stderr
    assert "Traceback" not in shown.stderr


def test_nothing_that_is_said_can_be_read_on_the_wire(oracle: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "server", oracle / "olmoe") as served:
        port = int(served.address.rpartition(":")[2])
        with tapped("127.0.0.1", port) as tap:
            where = ("--tracker", f"127.0.0.1:{tap.port}")
            answer = swarm(tmp_path / "client", "chat", *where, *GREEDY, stdin=QUESTION)
    assert answer.returncode == 0, answer.stderr
    assert tap.connections >= 1
    weights = (oracle / "olmoe" / "model.safetensors").read_bytes()
    # All the model's bytes came this way, so the tap has seen everything there was to see.
    assert len(tap.down) > len(weights) // 2
    assert len(tap.up) > 1000
    for secret in (QUESTION.encode(), QUESTION[:16].encode(), answer.stdout.strip().encode()[:24], b"olmoe"):
        assert len(secret) >= 5
        assert secret not in tap.up
        assert secret not in tap.down
    for start in range(0, len(weights) - 64, len(weights) // 50):
        piece = weights[start : start + 64]
        if len(set(piece)) > 8:
            assert piece not in tap.down
