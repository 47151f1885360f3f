"""Real processes for end-to-end tests: each has a home of its own and ends with the test."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0  # compiling the kernels for the first time takes most of a minute on a busy machine


def environment(home: Path) -> dict[str, str]:
    """The variables of a process whose files all lie below `home`."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWARM_", "COLUMNS"))}
    return kept | {"SWARM_HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TERM": "dumb"}


def command(*arguments: str | Path) -> list[str]:
    """The command line of `swarm ARGUMENTS`."""
    return [sys.executable, "-m", "swarm", *map(str, arguments)]


def swarm(
    home: Path, *arguments: str | Path, stdin: str = "", timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(home),
        check=False,
    )


@dataclass
class Running:
    """A command that goes on; its output lines are collected while it runs."""

    process: subprocess.Popen[str]
    out: "queue.Queue[str]" = field(default_factory=queue.Queue)
    err: list[str] = field(default_factory=list)

    def told(self, text: str, patience_s: float = 10.0) -> int:
        """How many lines of standard error say something, as soon as one does."""
        until = time.monotonic() + patience_s
        while not any(text in line for line in self.err) and time.monotonic() < until:
            time.sleep(0.02)
        return sum(text in line for line in self.err)

    def event(self, name: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next JSON line on standard output whose "event" is `name`."""
        while True:
            try:
                line = self.out.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"no {name!r} from {self.process.args!r}; errors: {self.err}") from None
            if line == "":
                raise AssertionError(f"{self.process.args!r} ended before {name!r}; errors: {self.err}")
            value: dict[str, Any] = json.loads(line)
            if value.get("event") == name:
                return value

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        """Sends a signal and waits for the end; kills when that does not help."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.process.args!r} did not end after {how.name}; {self.err}") from None


@contextmanager
def running(home: Path, *arguments: str | Path) -> Iterator[Running]:
    """Runs a command beside the test and ends it after the block."""
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
    )
    it = Running(process)
    readers = [
        threading.Thread(target=_collect, args=(process.stdout, it.out), daemon=True),
        threading.Thread(target=_append, args=(process.stderr, it.err), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        yield it
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in readers:
            reader.join()
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def _collect(stream: IO[str], lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def _append(stream: IO[str], lines: list[str]) -> None:
    lines.extend(stream)


@dataclass(frozen=True)
class Served:
    """A model that is being served by a process of its own."""

    running: Running
    address: str
    invite: str
    model: str
    version: int


@contextmanager
def serving(home: Path, model: Path, *arguments: str | Path) -> Iterator[Served]:
    """`swarm serve` of a model on loopback, at a free port."""
    where = ("--listen", "127.0.0.1", "--port", "0", "--advertise", "127.0.0.1", "--json")
    with running(home, "serve", "--model", model, *where, *arguments) as server:
        ready = server.event("serving")
        yield Served(server, ready["address"], ready["invite"], ready["model"], ready["version"])
