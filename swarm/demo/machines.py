"""Machines of a demonstration: `swarm` commands as processes of their own, each with a home of its own.

What they say as JSON lines is collected while they run. Whatever was started ends with the block that started it.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from swarm.errors import SwarmError

START_S = 120.0
END_S = 10.0
MOST_ERRORS = 20


class DemoFailed(SwarmError):
    """The demonstration's {part} failed: {reason}."""


class Machine:
    """A running command. `name` is what the demonstration calls it."""

    def __init__(self, name: str, module: str, home: Path, arguments: list[str]) -> None:
        self.name = name
        self.home = home
        home.mkdir(exist_ok=True)
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(home),
            # A Ctrl-C at our terminal is for us; this one ends when we have.
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._collect, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._complain, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def event(self, *names: str) -> dict[str, Any]:
        """The next event of one of these names. DemoFailed when it ends or is silent for too long."""
        while True:
            try:
                line = self._events.get(timeout=START_S)
            except queue.Empty:
                raise DemoFailed(part=self.name, reason=f"it said nothing for {START_S:.0f} s") from None
            if not line:
                raise DemoFailed(part=self.name, reason=self._last_words())
            event: dict[str, Any] = json.loads(line)
            if event["event"] in names:
                return event

    def tell(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Ends it at once, without a word to anybody, as a machine ends whose plug is pulled."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Asks it to end, and makes it end when it does not."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Ends it and gives back what it took."""
        self.end()
        for reader in self._readers:
            reader.join(END_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue  # a line that it did not read any more

    def _collect(self, stream: IO[str]) -> None:
        for line in stream:
            self._events.put(line)
        self._events.put("")

    def _complain(self, stream: IO[str]) -> None:
        for line in stream:
            self._errors.append(line.strip())
            del self._errors[:-MOST_ERRORS]

    def _last_words(self) -> str:
        self._process.wait(END_S)
        self._readers[1].join(END_S)
        return " ".join(self._errors) or f"it ended with code {self._process.returncode}"


def environment(home: Path) -> dict[str, str]:
    """The variables of a process whose files lie below a home of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "SWARM_TOKEN"}
    return {**kept, "SWARM_HOME": str(home)}


@contextmanager
def machine(name: str, home: Path, *arguments: str | Path, module: str = "swarm") -> Iterator[Machine]:
    """A command that runs for the length of a block."""
    started = Machine(name, module, home, [str(argument) for argument in arguments])
    try:
        yield started
    finally:
        started.close()
