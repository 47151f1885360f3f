"""What commands show while they work: a bar on a terminal, a line now and then elsewhere, JSON on request.

Progress goes to standard error, so that standard output holds results only.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from swarm.errors import clean_text
from swarm.system import moves_cursor
from swarm.units import format_bytes

_QUIET_S = 10.0
"""Off a terminal, progress is reported no more often than this."""


def say(text: str) -> None:
    """A line of news on standard error; control characters in it do no harm."""
    print(clean_text(text), file=sys.stderr, flush=True)


def emit_json(value: Any) -> None:
    """One JSON document a line on standard output."""
    print(json.dumps(value, ensure_ascii=False, sort_keys=False), flush=True)


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns set under their heads, wide characters counted as such; every cell is cleaned."""
    from tui.tables import Column, plain

    cleaned = [[clean_text(cell) for cell in row] for row in rows]
    return "\n".join(plain([Column(head) for head in heads], cleaned))


@contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """Gives `show(done, total, detail)`, which draws how far a count of bytes is and how fast it moves."""
    if moves_cursor(sys.stderr):
        with _bar(label) as show:
            yield show
    else:
        yield _Lines(label).show


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int, str], None]]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(label), total=None, detail="")

        def show(done: int, total: int, detail: str) -> None:
            progress.update(task, completed=done, total=total, detail=escape(clean_text(detail, limit=30)))

        yield show


class _Lines:
    """Progress for a log: a line every few seconds while it lasts, so short work says nothing."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self._started = self._spoken = clock()

    def show(self, done: int, total: int, detail: str) -> None:
        now = self._clock()
        if now - self._spoken < _QUIET_S:
            return
        self._spoken = now
        speed = format_bytes(done / (now - self._started))
        say(f"{self._label}: {format_bytes(done)} of {format_bytes(total)}, {speed}/s {detail}".rstrip())
