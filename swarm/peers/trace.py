"""Each layer's hops as JSON lines, for `--trace FILE`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from swarm.peers.remote import RemoteExperts
from swarm.peers.tale import Tale
from swarm.system import words_of_system


@contextmanager
def tracing(experts: RemoteExperts, path: Path | None, say: Callable[[str], None]) -> Iterator[None]:
    """Writes what happens in each layer to a file for the length of a block. OSError when it cannot be opened.

    When it cannot be written later on, `say` is told and the trace ends; what is traced goes on.
    """
    if path is None:
        yield
        return
    trace = Trace(path, say)
    experts.tell = trace.write
    try:
        yield
    finally:
        experts.tell = None
        trace.close()


class Trace:
    """Writes one line a layer; called in the compute thread."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._file: TextIO | None = path.open("w", encoding="utf-8")

    def write(self, layer: int, rows: int, chosen: int, ms: float, tale: Tale) -> None:
        """One layer: `chosen` pairs ran here by choice, `quicker_pairs` because their donor was late or is much slower,
        `fallback_pairs` because nobody else could."""
        if self._file is None:
            return
        line = {
            "layer": layer,
            "rows": rows,
            "ms": round(ms, 3),
            "local_pairs": chosen,
            "quicker_pairs": tale.quicker_pairs,
            "fallback_pairs": tale.local_pairs,
            "hops": [asdict(hop) | {"ms": round(hop.ms, 3)} for hop in tale.hops],
        }
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        """Ends the trace."""
        self._end(None)

    def _end(self, error: OSError | None) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()  # writes what it still holds
        except OSError as last:
            error = error or last
        if error is not None:
            error.filename = str(self._path)
            self._say(f"the trace ends early; {words_of_system(error)}")
