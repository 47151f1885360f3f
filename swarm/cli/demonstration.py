"""What `swarm demo` shows. What it starts ends with it; what it writes is removed at the end."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from swarm.cli.output import say
from swarm.errors import SwarmError

QUESTION = "What is Swarm?"
START_S = 120.0
END_S = 10.0
GENERATED_TOKENS = 40


class DemoFailed(SwarmError):
    """The demonstration's {part} did not start: {reason}."""


def demonstrate(question: str | None) -> int:
    """Runs the demonstration; the exit code of its chat."""
    interactive = question is None and sys.stdin.isatty() and sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="swarm-demo-") as folder:
        place = Path(folder)
        model, speaks = _model(place)
        if not speaks:
            say("This demonstration's model has random weights: it is real in all but what it says.")
        say("Starting a server (tracker and origin) in a process of its own …")
        with _serving(place / "server", model) as ready:
            operator = ready["operator"][:16]
            say(f"It serves {ready['model']} at {ready['address']}, signed by operator {operator}.")
            say(
                "Joining from an empty home; only the bytes that are read will be fetched, each MiB verified."
            )
            chat = ["chat", ready["invite"]]
            if interactive:
                return _run(place / "client", chat)
            asked = question or QUESTION
            say(f"Asking: {asked}")
            limit = [] if speaks else ["--max-tokens", str(GENERATED_TOKENS)]
            return _run(place / "client", [*chat, "--plain", "--temperature", "0", *limit], f"{asked}\n")


def _model(place: Path) -> tuple[Path, bool]:
    """The model to show, and whether it was trained to speak."""
    trained = Path(__file__).resolve().parents[1] / "demo" / "model"
    if (trained / "config.json").is_file():
        return trained, True
    from swarm.demo.generated import write_checkpoint

    generated = place / "random-model"
    write_checkpoint(generated)
    return generated, False


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "swarm", *arguments]


def _environment(home: Path) -> dict[str, str]:
    home.mkdir()
    return {**os.environ, "SWARM_HOME": str(home)}


def _run(home: Path, arguments: list[str], question: str | None = None) -> int:
    """Runs a command to its end, on our terminal or with one question as its input."""
    environment = _environment(home)
    finished = subprocess.run(_command(arguments), input=question, text=True, env=environment, check=False)
    return finished.returncode


@contextmanager
def _serving(home: Path, model: Path) -> Iterator[dict[str, Any]]:
    """A server for the length of a block; what it said when it was ready."""
    where = ["--port", "0", "--listen", "127.0.0.1", "--json"]
    server = subprocess.Popen(
        _command(["serve", "--model", str(model), *where]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(home),
        # A Ctrl-C at our terminal is for the chat; the server ends when the chat has.
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stderr is not None
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_pass_on, args=(server.stdout, events), daemon=True),
        threading.Thread(target=errors.extend, args=(server.stderr,), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        yield _ready(events, errors)
    finally:
        server.terminate()
        try:
            server.wait(END_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        for reader in readers:
            reader.join(END_S)
        server.stdout.close()
        server.stderr.close()


def _pass_on(stream: IO[str], events: "queue.SimpleQueue[str]") -> None:
    for line in stream:
        events.put(line)
    events.put("")


def _ready(events: "queue.SimpleQueue[str]", errors: list[str]) -> dict[str, Any]:
    while True:
        try:
            line = events.get(timeout=START_S)
        except queue.Empty:
            raise DemoFailed(part="server", reason=f"it was not ready within {START_S:.0f} s") from None
        if not line:
            raise DemoFailed(part="server", reason=" ".join(errors).strip() or "it ended")
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "serving":
            return event
