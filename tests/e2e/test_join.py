"""`swarm serve --join`: a second server of a whole model, which stays when the first is gone, and comes back."""

import signal
from pathlib import Path

import pytest

from swarm.cli.frame import run
from swarm.demo.generated import write_checkpoint
from swarm.trust.manifest import CHUNK_BYTES
from tests.e2e.processes import Running, running, serving, swarm

LOCAL = ("--listen", "127.0.0.1", "--port", "0", "--json")


def until_it_serves(server: Running) -> int:
    """Waits until all of the model is served; how many chunks that is."""
    now = server.event("lending")
    while now["state"] != "running":
        now = server.event("lending")
    assert now["ready"] == now["assigned"]
    return int(now["ready"])


def fetch_all(home: Path, invite: str) -> None:
    """`swarm cache prefetch`: all of the model, verified."""
    done = swarm(home, "cache", "prefetch", invite)
    assert done.returncode == 0, done.stderr


def test_a_second_server_outlives_the_first_and_its_own_end(tmp_path: Path) -> None:
    model, second = tmp_path / "model", tmp_path / "second"
    write_checkpoint(model)
    (model / "more.bin").write_bytes(b"m" * (3 * CHUNK_BYTES + 1))
    with running(tmp_path / "tracker", "tracker", *LOCAL) as tracker:
        invite = tracker.event("tracking")["invite"]
        with serving(tmp_path / "first", model, "--tracker", invite, "--no-exec") as first:
            with running(second, "serve", "--join", first.invite, "--model", "model", *LOCAL) as server:
                chunks = until_it_serves(server)
                assert first.running.stop() == 0
                fetch_all(tmp_path / "a", first.invite)
                assert server.stop(signal.SIGINT) == 0
            with running(second, "serve", "--join", first.invite, *LOCAL) as server:
                assert until_it_serves(server) == chunks, "with nobody there to fetch from"
                fetch_all(tmp_path / "b", first.invite)


def test_what_chats_will_trip_over_is_said_by_a_second_server_too(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_checkpoint(model)
    (model / "generation_config.json").write_text('{"do_sample": true, "temperature": -1}')
    with (
        serving(tmp_path / "first", model, "--no-exec") as first,
        running(tmp_path / "second", "serve", "--join", first.invite, *LOCAL) as server,
    ):
        until_it_serves(server)
        assert server.event("trouble")["reason"].startswith("generation_config.json: temperature is -1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            (("--join", "127.0.0.1:1", option), "--join excludes")
            for option in ("--private", "--no-exec", "--key=x")
        ),
        (("--join", "127.0.0.1:1", "--weights", "q8"), "--join excludes --weights"),
        ((), "--model"),
    ],
)
def test_what_is_not_the_further_servers_to_decide_is_refused(
    home: Path, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *options]) == 2
    assert words in capsys.readouterr().err
