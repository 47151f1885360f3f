"""The operator's key away from the server, and handed over: clients follow, and the server needs no key."""

import json
import shutil
from pathlib import Path

from swarm.trust.identity import Identity
from tests.e2e.processes import running, swarm

LOCAL = ("--listen", "127.0.0.1", "--port", "0", "--json")


def test_a_server_without_the_key_serves_what_was_signed_elsewhere(oracle: Path, tmp_path: Path) -> None:
    office, server, model = tmp_path / "office", tmp_path / "server", tmp_path / "model"
    shutil.copytree(oracle / "olmoe", model)
    key = office / "operator.key"
    first = swarm(office, "key", "rotate", tmp_path / "none", "--key", key)
    assert first.returncode == 1
    assert str(key) in first.stderr
    operator = Identity.load_or_create(key)
    signed = tmp_path / "olmoe.signed"
    done = swarm(office, "key", "sign", "--model", model, "--name", "olmoe", "--out", signed)
    assert done.returncode == 0, done.stderr
    # What lies beside the model is no part of it, whatever it looks like.
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"x": "none.safetensors"}}')
    (model / "run").mkdir()
    (model / "run" / "log.txt").write_text("started")
    arguments = ("serve", "--model", model, "--signed", signed, *LOCAL)
    with running(server, *arguments) as serving:
        facts = serving.event("serving")
        assert facts["operator"] == operator.key.hex()
        assert facts["model"] == "olmoe"
        assert serving.event("executing")
        listed = swarm(tmp_path / "chat", "models", facts["invite"], "--json")
        assert json.loads(listed.stdout)["operator"] == operator.key.hex(), listed.stderr
    assert not (server / "operator.key").exists()
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    other = swarm(server, *arguments)
    assert other.returncode == 1
    assert "config.json has other content" in other.stderr


def test_the_key_that_succeeds_is_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    old = Identity.load_or_create(home / "operator.key")
    new = tmp_path / "new.key"
    assert swarm(home, "key", "rotate", new).returncode == 0
    shown = json.loads(swarm(home, "key", "show", "--key", new, "--json").stdout)
    assert [key["key"] for key in shown["keys"]] == [old.key.hex(), Identity.load(new).key.hex()]
    assert swarm(home, "key", "retire", "--key", new).returncode == 0
    shown = json.loads(swarm(home, "key", "show", "--key", new, "--json").stdout)
    assert [key["may_sign"] for key in shown["keys"]] == [False, True]
