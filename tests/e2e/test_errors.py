"""Bad input ends in one clear line that says what to do, a code that is not 0, and nothing half written."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.cli.frame import run
from swarm.demo.generated import Shape, write_checkpoint
from tests.e2e.processes import Served, running, serving, swarm


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a private swarm."""
    folder = tmp_path_factory.mktemp("private")
    write_checkpoint(folder / "model")
    with serving(folder / "server", folder / "model", "--token", "open sesame") as it:
        yield it


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small checkpoint."""
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def line(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail; the line it failed with, without the program's name."""

    def fail(*arguments: str | Path, code: int = 1) -> str:
        assert run([str(argument) for argument in arguments]) == code
        captured = capsys.readouterr()
        lines = [text for text in captured.err.splitlines() if text.startswith("swarm: ")]
        assert len(lines) == 1, captured.err
        assert "Traceback" not in captured.err
        return lines[0].removeprefix("swarm: ")

    return fail


def ids_file(folder: Path) -> Path:
    path = folder / "ids"
    path.write_text("3 4 5")
    return path


def logits_of(folder: Path) -> tuple[str, ...]:
    return ("--ids", str(ids_file(folder)), "--out", str(folder / "out.npy"))


def test_no_such_directory(line: Callable[..., str], tmp_path: Path) -> None:
    assert "nowhere" in line("serve", "--model", tmp_path / "nowhere", "--port", "0")
    assert "nowhere" in line("logits", "--local", tmp_path / "nowhere", *logits_of(tmp_path))
    assert not (tmp_path / "out.npy").exists()


def test_unknown_family(line: Callable[..., str], model: Path) -> None:
    config = model / "config.json"
    config.write_text(config.read_text().replace('"olmoe"', '"dense_wonder"'))
    assert "dense_wonder" in line("serve", "--model", model, "--port", "0")


def test_a_shard_that_is_cut_short(line: Callable[..., str], model: Path, home: Path) -> None:
    os.truncate(model / "model.safetensors", 300_000)
    assert "model.safetensors" in line("serve", "--model", model, "--port", "0")
    assert not (home / "served").exists()


def test_what_chats_will_trip_over_is_said_when_the_model_is_served(model: Path, tmp_path: Path) -> None:
    settings = model / "generation_config.json"
    settings.write_text('{"do_sample": true, "temperature": -1}')
    local = ("--listen", "127.0.0.1", "--port", "0", "--no-exec", "--json")
    with running(tmp_path / "server", "serve", "--model", model, *local) as server:
        reason = server.event("trouble")["reason"]
        assert reason.startswith("generation_config.json: temperature is -1")
        assert server.event("serving")["bytes"]
    out = tmp_path / "model.signed"
    key = tmp_path / "home" / "operator.key"
    assert swarm(tmp_path / "home", "key", "new", key).returncode == 0
    signed = swarm(tmp_path / "home", "key", "sign", "--model", model, "--key", key, "--out", out)
    assert signed.returncode == 0, signed.stderr
    assert reason in signed.stderr


def test_a_git_lfs_pointer(line: Callable[..., str], model: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    (model / "model.safetensors").write_text(pointer)
    assert "Git-LFS" in line("serve", "--model", model, "--port", "0").replace("Git LFS", "Git-LFS")


def test_a_port_that_is_taken(line: Callable[..., str], model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = line("serve", "--model", model, "--listen", "127.0.0.1", "--port", str(port))
    assert str(port) in said
    assert "--port" in said


@pytest.mark.parametrize("content", ["", "swarm identity 1 zz\n", "-----BEGIN PRIVATE KEY-----\n"])
def test_an_unreadable_operator_key(
    content: str, line: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "operator.key"
    key.write_text(content)
    key.chmod(0o600)
    assert "operator.key" in line("serve", "--model", model, "--port", "0", "--key", key)
    assert key.read_text() == content


def test_a_mistyped_path_makes_no_new_operator(line: Callable[..., str], model: Path, tmp_path: Path) -> None:
    key = tmp_path / "operator.kye"
    said = line("serve", "--model", model, "--port", "0", "--key", key)
    assert str(key) in said
    assert "swarm key new" in said
    assert not key.exists()
    assert run(["key", "new", str(key)]) == 0
    assert "another key is there" in line("key", "new", key)


def test_a_trace_that_cannot_be_written_is_told_before_anything_is_loaded(
    line: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    nowhere = tmp_path / "no" / "trace"
    assert "--trace" in line("chat", "host.invalid", "--trace", nowhere)
    assert str(nowhere.parent) in line("logits", "host.invalid", *logits_of(tmp_path), "--trace", nowhere)
    for command in (("chat", "--local", model), ("logits", "--local", model, *logits_of(tmp_path))):
        assert "nobody is asked" in line(*command, "--trace", tmp_path / "trace", code=2)


def test_a_home_that_is_a_file(
    line: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "file"))
    for command in (("models",), ("cache", "list"), ("doctor",), ("key", "show")):
        assert "SWARM_HOME" in line(*command)


def test_an_operator_key_that_others_can_read(line: Callable[..., str], model: Path, tmp_path: Path) -> None:
    key = tmp_path / "operator.key"
    key.write_text("swarm identity 1 " + "00" * 32 + "\n")
    key.chmod(0o644)
    assert "chmod 600" in line("serve", "--model", model, "--port", "0", "--key", key)


def test_no_tracker_there(line: Callable[..., str], tmp_path: Path, home: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{unused.getsockname()[1]}"
        assert f"{where} cannot be reached: connection refused." in line("models", "--tracker", where)
        assert where in line("logits", "--tracker", where, *logits_of(tmp_path))
    assert not (tmp_path / "out.npy").exists()
    assert not (home / "trackers.json").exists()


def test_something_else_listens_there(line: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        import threading

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)

        thread = threading.Thread(target=answer)
        thread.start()
        assert where in line("models", "--tracker", where)
        thread.join(10)


def test_a_wrong_token(line: Callable[..., str], private: Served, home: Path) -> None:
    for wrong in (("--token", "open barley"), ()):
        said = line("models", "--tracker", private.address, *wrong)
        assert "token" in said.lower()
    assert not (home / "manifests").exists()
    assert run(["models", "--tracker", private.address, "--token", "open sesame"]) == 0
    assert run(["models"]) == 0, "the swarm used last is remembered with its token"
    assert run(["audit", "bans"]) == 0


def test_a_damaged_invite(line: Callable[..., str], private: Served) -> None:
    assert "invite" in line("models", private.invite[:-1])
    changed = private.invite[:40] + ("A" if private.invite[40] != "A" else "B") + private.invite[41:]
    assert "invite" in line("models", changed)


def test_no_such_model(line: Callable[..., str], private: Served, tmp_path: Path) -> None:
    said = line("logits", private.invite, "--model", "gone", *logits_of(tmp_path))
    assert "gone" in said
    assert private.model in said


def test_what_is_asked_for_twice_or_not_at_all(line: Callable[..., str], model: Path, tmp_path: Path) -> None:
    assert "not both" in line("models", "swarm://x", "--tracker", "y", code=2)
    assert "--tracker" in line("models", code=2)
    assert "empty" in line("models", "", code=2)
    assert "--local" in line("logits", *logits_of(tmp_path), code=2)
    assert "--private" in line("serve", "--model", model, "--token", "a", "--private", code=2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "no token ids"),
        ("1 two 3", "two"),
        ("[1, -2]", "-2"),
        ("99999", "99999"),
    ],
)
def test_bad_token_ids(
    content: str, text: str, line: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids"
    ids.write_text(content)
    assert text in line("logits", "--local", model, "--ids", ids, "--out", tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


def test_more_ids_than_the_context_holds(line: Callable[..., str], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", Shape(context=8))
    ids = tmp_path / "ids"
    ids.write_text("3 4 5")
    where = ("logits", "--local", tmp_path / "model", "--ids", ids, "--out", tmp_path / "out.npy")
    assert run([str(word) for word in (*where, "--greedy", 6)]) == 0
    said = line(*where, "--greedy", 7)
    assert "3 token ids and 7 more tokens do not fit this model's context of 8" in said


def test_an_output_that_cannot_be_written(line: Callable[..., str], model: Path, tmp_path: Path) -> None:
    ids = ids_file(tmp_path)
    said = line("logits", "--local", model, "--ids", ids, "--out", tmp_path / "no" / "out.npy")
    assert str(tmp_path / "no") in said
    assert "directory" in line("logits", "--local", model, "--ids", ids, "--out", tmp_path)


def test_a_full_disk_while_fetching(
    line: Callable[..., str], private: Served, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from mirror.files import Disk

    def full(self: Disk, descriptor: int, parts: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Disk, "write", full)
    said = line("logits", private.invite, *logits_of(tmp_path))
    assert "disk" in said.lower()
    assert "swarm cache gc" in said
    assert not (tmp_path / "out.npy").exists()
    assert not [
        path
        for path in (home / "cache" / "chunks").rglob("*")
        if path.is_file() and path.stat().st_size > 4096
    ]


def test_a_damaged_memory_is_named_and_not_taken_for_a_first_meeting(
    line: Callable[..., str], private: Served, home: Path
) -> None:
    assert run(["models", private.invite]) == 0
    (home / "trackers.json").write_text("{")
    assert "trackers.json" in line("models", private.invite)
