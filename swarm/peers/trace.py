"""Each layer's hops as JSON lines, for `--trace FILE`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from swarm.peers.remote import RemoteExperts
from swarm.peers.tale import Tale


@contextmanager
def tracing(experts: RemoteExperts, path: Path | None) -> Iterator[None]:
    """Writes what happens in each layer to a file for the length of a block. OSError when it cannot."""
    if path is None:
        yield
        return
    with path.open("w", encoding="utf-8") as file:
        experts.tell = Trace(file).write
        try:
            yield
        finally:
            experts.tell = None


class Trace:
    """Writes one line a layer; called in the compute thread."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, layer: int, rows: int, chosen: int, ms: float, tale: Tale) -> None:
        """One layer: `chosen` pairs ran here by choice, `fallback_pairs` because nobody else could."""
        line = {
            "layer": layer,
            "rows": rows,
            "ms": round(ms, 3),
            "local_pairs": chosen,
            "fallback_pairs": tale.local_pairs,
            "hops": [asdict(hop) | {"ms": round(hop.ms, 3)} for hop in tale.hops],
        }
        self._file.write(json.dumps(line) + "\n")
