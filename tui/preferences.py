"""What the terminal remembers between runs: how it looks, what was typed, what this machine lends."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from swarm.trust.files import locked, write_atomically

_MOST_LINES = 1000


@dataclass(frozen=True)
class Preferences:
    """Answers and tastes."""

    theme: str = ""
    """dark, light, terminal; empty: by the terminal's ground."""
    reasoning: str = "folded"
    """folded or shown."""
    mouse: str = "on"
    place: str = ""
    """The directory that was given last, if that was later than any swarm."""
    lend: str = ""
    """"" (nothing), disk, compute or both."""
    lend_disk_bytes: int = 0
    lend_ram_bytes: int = 0
    asked: bool = False
    """The first-run questions were answered."""


def load(path: Path) -> Preferences:
    """The remembered preferences; the defaults for what is not there or makes no sense."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Preferences()
    if not isinstance(stored, dict):
        return Preferences()
    known = {item.name: type(getattr(Preferences(), item.name)) for item in fields(Preferences)}
    values: dict[str, Any] = {
        name: value for name, value in stored.items() if name in known and type(value) is known[name]
    }
    return Preferences(**values)


def keep(path: Path, **changes: Any) -> None:
    """Change some, and keep what others have changed meanwhile. OSError as it comes, and then nothing has changed."""
    with locked(path.with_suffix(".lock")):
        kept = replace(load(path), **changes)
        write_atomically(path, (json.dumps(asdict(kept), indent=2) + "\n").encode())


class History:
    """Lines typed in earlier chats, oldest first; one JSON string a line, so a message may have many lines.

    Several chats may run at once: each appends, nobody rewrites but to shorten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = self._read()
        self._at = len(self._entries)
        self._draft = ""

    def _read(self) -> list[str]:
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return []
        entries = []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, str):
                entries.append(entry)
        if len(entries) > 2 * _MOST_LINES:
            entries = entries[-_MOST_LINES:]
            shorter = "".join(json.dumps(entry) + "\n" for entry in entries)
            with suppress(OSError):  # where nothing can be written it stays long, which does no harm
                write_atomically(self._path, shorter.encode())
        return entries

    @property
    def entries(self) -> list[str]:
        """All entries, oldest first."""
        return list(self._entries)

    def add(self, text: str) -> None:
        """Remember what was sent, unless it repeats the last entry. OSError: only until the program ends."""
        fresh = bool(text.strip()) and self._entries[-1:] != [text]
        if fresh:
            self._entries.append(text)
        self._at, self._draft = len(self._entries), ""
        if fresh:
            self._append(text)

    def _append(self, text: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(json.dumps(text) + "\n")

    def back(self, current: str) -> str | None:
        """The entry before; what is being written is kept for the way forward."""
        if self._at == 0:
            return None
        if self._at == len(self._entries):
            self._draft = current
        self._at -= 1
        return self._entries[self._at]

    def forward(self) -> str | None:
        """The entry after, in the end what was being written."""
        if self._at >= len(self._entries):
            return None
        self._at += 1
        return self._entries[self._at] if self._at < len(self._entries) else self._draft
