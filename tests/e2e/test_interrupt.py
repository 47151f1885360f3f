"""Ctrl-C stops the reply and not the program; signals end a server well."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.demo.generated import Shape, write_checkpoint
from tests.e2e.processes import command, environment, running, serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that never ends a reply by itself."""
    folder = tmp_path_factory.mktemp("endless") / "model"
    write_checkpoint(folder, Shape(context=200_000))
    return folder


@pytest.fixture
def chat(model: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A chat without a terminal."""
    arguments = command("chat", "--local", model, "--plain", "--temperature", "0")
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(tmp_path / "home"),
    )
    watchdog = threading.Timer(240, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def say(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(text + b"\n")
    process.stdin.flush()


def some(process: subprocess.Popen[bytes]) -> bytes:
    """Waits for a little output."""
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), 4096)


def test_an_interrupt_stops_the_reply_and_the_next_question_is_answered(
    chat: subprocess.Popen[bytes],
) -> None:
    say(chat, b"first")
    assert some(chat).strip()
    chat.send_signal(signal.SIGINT)
    say(chat, b"/set max-tokens 5")
    say(chat, b"second")
    say(chat, b"/quit")
    assert chat.stdout is not None
    rest = chat.stdout.read()
    assert chat.wait() == 0
    assert rest.strip()
    assert len(rest) < 2_000_000


def test_the_end_of_input_ends_the_program_after_the_last_reply(model: Path, tmp_path: Path) -> None:
    finished = subprocess.run(
        command("chat", "--local", model, "--max-tokens", "3", "--temperature", "0"),
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(tmp_path / "home"),
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert len(finished.stdout.splitlines()) >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_server_well(number: signal.Signals, model: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "server", model) as served:
        assert served.running.stop(number) == 0
        assert served.running.err == []


def test_a_signal_ends_a_tracker_well(tmp_path: Path) -> None:
    with running(tmp_path / "home", "tracker", "--port", "0", "--listen", "127.0.0.1", "--json") as tracker:
        assert tracker.event("tracking")["invite"].startswith("swarm://127.0.0.1:")
        assert tracker.stop() == 0


def test_a_server_can_be_interrupted_while_it_hashes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder)
    with (folder / "sparse.bin").open("wb") as file:
        file.truncate(200 << 30)
    with running(tmp_path / "home", "serve", "--model", folder, "--port", "0", "--json") as server:
        # Nothing is printed while it hashes, so the kept hashes of the small files tell that it began.
        hashes = tmp_path / "home" / "cache" / "hashes"
        for _ in range(300):
            if server.process.poll() is not None or hashes.exists() or _reads(server.process.pid):
                break
            threading.Event().wait(0.1)
        assert server.stop(signal.SIGINT) == 130
    assert not (tmp_path / "home" / "served").exists()


def _reads(pid: int) -> bool:
    """Whether a process has read much."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return any(line.startswith("rchar:") and int(line.split()[1]) > 500 << 20 for line in lines)
