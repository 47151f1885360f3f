"""What this machine lends while a chat is open: `swarm donate`, in processes of their own.

A program that computes for others must not slow the one that its user looks at, and must be able to fail alone.
Pausing ends the process as a signal does (it drains, and tells the tracker), resuming starts it again: paused,
nothing of this machine is taken. The swarm to lend to is the one that is remembered, so that an invite, which
may hold a secret, never stands in a list of processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from tui.backend import Donation
from tui.cleaner import clean_line
from tui.views import DonationView

END_S = 10.0
Command = Callable[[str, int, str], Sequence[str]]


def donate_command(kind: str, size_bytes: int, model: str) -> list[str]:
    """The command that lends disk or compute to a model, or to the swarm's only one."""
    option = "--size" if kind == "disk" else "--ram"
    chosen = ["--model", model] if model else []
    return [
        sys.executable,
        "-m",
        "swarm",
        "donate",
        kind,
        option,
        str(size_bytes),
        "--while-stdin",
        "--json",
        *chosen,
    ]


@dataclass
class _Child:
    """One process, the last thing it said, and what it answered so far."""

    process: subprocess.Popen[str]
    last: str = ""
    calls: int = 0
    bytes_out: int = 0
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """It ended by itself, and not well."""
        return self.process.poll() not in (None, 0)

    def read(self, stream: IO[str]) -> None:
        """Keep what a stream says last: events on the one, plain complaints on the other."""
        with stream:
            for line in stream:
                try:
                    self._hear(json.loads(line))
                except (ValueError, TypeError, KeyError):
                    self.last = clean_line(line, 200).removeprefix("swarm: ") or self.last

    def _hear(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "served":
                self.calls, self.bytes_out = int(event["calls"]), int(event["bytes"])
            case "lending":
                unit = "experts" if event["kind"] == "compute" else "MiB"
                now = f"{event['model']}: {event['ready']} of {event['assigned']} {unit} ready"
                self.last = clean_line(str(event["problem"] or now), 200)
            case "standing" if event["problem"]:
                self.last = clean_line(f"the tracker does not know this donor: {event['problem']}", 200)
            case "standing" if not event["address"]:
                self.last = "reached through the tracker's relay"

    def leave(self) -> None:
        """Ask it to end."""
        if self.process.poll() is None:
            self.process.terminate()

    def end(self) -> None:
        """Wait for its end after `leave`; make it end, when it takes too long."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.poll() is None:
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for reader in self.readers:
            reader.join()


class Lending:
    """Starts and ends processes as the user wishes. Methods may be called from any thread; `view` never waits."""

    def __init__(self, command: Command = donate_command) -> None:
        self._command = command
        self._wish = Donation("")
        self._children: list[_Child] = []
        self._lock = threading.Lock()

    def want(self, wish: Donation, model: str = "") -> DonationView:
        """Lend this to a model from now on. OSError: a process cannot be started."""
        with self._lock:
            for child in self._children:
                child.leave()
            for child in self._children:
                child.end()
            self._children = []
            self._wish = wish
            if not wish.paused:
                self._start(wish, model)
        return self.view()

    def view(self) -> DonationView:
        """What is lent now."""
        wish, children = self._wish, list(self._children)
        if not wish.kind:
            return DonationView()
        failed = [child for child in children if child.failed]
        ended = [child for child in children if child.process.poll() == 0]
        state = "paused" if wish.paused else "failed" if failed else "ended" if ended else "running"
        said = failed or children
        return DonationView(
            wish.kind,
            state,
            wish.disk_bytes,
            wish.ram_bytes,
            sum(child.calls for child in children),
            sum(child.bytes_out for child in children),
            said[-1].last if said else "",
        )

    def close(self) -> None:
        """End everything; what was wished for is forgotten."""
        self.want(Donation(""))

    def _start(self, wish: Donation, model: str) -> None:
        wanted = {"disk": wish.disk_bytes, "compute": wish.ram_bytes}
        kinds = ("disk", "compute") if wish.kind == "both" else (wish.kind,) if wish.kind else ()
        for kind in kinds:
            process = subprocess.Popen(
                self._command(kind, wanted[kind], model),
                stdin=subprocess.PIPE,  # held open as long as we live, however we end
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # Ctrl-C and a closing terminal are for the chat, which ends this process itself.
                start_new_session=True,
            )
            child = _Child(process)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                reader = threading.Thread(
                    target=child.read, args=(stream,), name="swarm-lending", daemon=True
                )
                child.readers.append(reader)
                reader.start()
            self._children.append(child)

    def __del__(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError):
                child.process.terminate()
            if child.process.stdin is not None:
                child.process.stdin.close()
