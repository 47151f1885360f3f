"""The trace of a reply, where its file cannot be written."""

from pathlib import Path

import pytest

from swarm.peers.tale import Tale
from swarm.peers.trace import Trace


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("layers", [1, 2000])
def test_a_full_disk_ends_the_trace_and_nothing_else(layers: int) -> None:
    said: list[str] = []
    trace = Trace(Path("/dev/full"), said.append)
    for layer in range(layers):
        trace.write(layer, 1, 0, 1.0, Tale())
    trace.close()
    (text,) = said
    assert text.startswith("the trace ends early; /dev/full: the disk is full")
