"""The other processes of a measurement: started, heard when they are ready, let go by closing their input."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio


class Helper:
    """A process `python -m MODULE ARGUMENTS…` that says by one JSON object a line what is to be known of it."""

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self._process = process
        self._name = name
        self.told = self.hear()
        """What it said when it was ready."""

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(self, line: str) -> dict[str, Any]:
        """Tells it a line; waits for what it answers. RuntimeError when it ended without."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.hear()

    def let_go(self) -> None:
        """Tells it to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def hear(self) -> dict[str, Any]:
        """Waits for what it says next. RuntimeError when it ended without."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the measurement ended without its answer: {self._name}")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def helper(module: str, *arguments: str) -> Iterator[Helper]:
    """One process for the length of a block. RuntimeError when it ends before it is ready."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Helper(process, arguments[0])
        finally:
            assert process.stdin is not None
            process.stdin.close()


def tell(**facts: object) -> None:
    """Said by a helper to who started it."""
    print(json.dumps(facts), flush=True)


async def until_let_go(nursery: trio.Nursery) -> None:
    """Waits in a helper until it is told to end, and cancels what it does."""
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    nursery.cancel_scope.cancel()
