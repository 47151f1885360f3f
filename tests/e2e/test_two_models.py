"""Several models on one tracker: each served from a machine of its own, found and opened by name."""

import json
from pathlib import Path

from swarm.trust.identity import Identity
from tests.e2e.processes import running, swarm

LOCAL = ("--listen", "127.0.0.1", "--port", "0", "--json")


def test_a_tracker_brings_two_servers_together(oracle: Path, tmp_path: Path) -> None:
    with running(
        tmp_path / "tracker", "tracker", "--token", "a passphrase to join", "--metrics", "0", *LOCAL
    ) as tracker:
        invite = tracker.event("tracking")["invite"]
        assert tracker.event("metrics")["address"].startswith("127.0.0.1:")
        served = [
            (tmp_path / name, "serve", "--model", oracle / name, "--tracker", invite, *LOCAL)
            for name in ("olmoe", "qwen3_moe")
        ]
        with running(*served[0]) as first, running(*served[1]) as second:
            facts = [one.event("serving") for one in (first, second)]
            assert facts[0]["operator"] != facts[1]["operator"]
            listed = swarm(tmp_path / "chat", "models", invite, "--json")
            models = {model["name"]: model for model in map(json.loads, listed.stdout.splitlines())}
            assert set(models) == {"olmoe", "qwen3_moe"}, listed.stderr
            assert all(model["covered_chunks"] == model["chunks"] for model in models.values())
            answer = swarm(
                tmp_path / "chat",
                "chat",
                invite,
                "--model",
                "qwen3_moe",
                "--max-tokens",
                "3",
                stdin="Hello\n",
            )
            assert answer.returncode == 0, answer.stderr


def test_a_servers_own_tracker_takes_models_of_the_operators_it_knows(oracle: Path, tmp_path: Path) -> None:
    guest = Identity.load_or_create(tmp_path / "guest.key")
    where = ("--no-exec", "--no-lan", *LOCAL)
    own = ("serve", "--model", oracle / "olmoe", "--operator", guest.key.hex(), *where)
    with running(tmp_path / "own", *own) as server:
        invite = server.event("serving")["invite"]
        joining = ("serve", "--model", oracle / "qwen3_moe", "--tracker", invite, *where)
        with running(tmp_path / "guest", *joining, "--key", tmp_path / "guest.key") as second:
            second.event("serving")
        stranger = swarm(tmp_path / "stranger", *joining)
        assert stranger.returncode == 1
        assert "takes models of known operators only" in stranger.stderr
        key = Identity.load(tmp_path / "stranger" / "operator.key").key.hex()
        assert f"and {key} is none; ask whoever runs it to name that key with --operator" in stranger.stderr


def test_an_invite_of_a_swarm_excludes_a_token_of_ones_own(oracle: Path, tmp_path: Path) -> None:
    wrong = swarm(tmp_path, "serve", "--model", oracle / "olmoe", "--tracker", "127.0.0.1:1", "--private")
    assert wrong.returncode == 2
    assert "--private" in wrong.stderr
