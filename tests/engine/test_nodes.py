"""Memory spread over the nodes of a machine. Here there is one as a rule: what the system was told is looked at."""

import ctypes
import mmap
from pathlib import Path

import pytest

from engine import nodes

SIZE = 8 << 20


def test_lists_of_nodes() -> None:
    assert nodes.numbers("") == ()
    assert nodes.numbers("0") == (0,)
    assert nodes.numbers("0-2,5") == (0, 1, 2, 5)


def test_pages_of_a_mapping_are_dealt_out_where_the_system_lets_us_choose() -> None:
    block = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    known = nodes.usable()  # none in containers that forbid the question
    assert nodes.spread(address, SIZE, known) == bool(known)
    maps = Path("/proc/self/numa_maps")
    if known and maps.exists():
        policies = dict(line.split()[:2] for line in maps.read_text().splitlines())
        assert policies[f"{address:x}"].startswith("interleave")


def test_one_node_is_left_alone_and_a_user_s_choice_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "usable", lambda: (0,))
    assert not nodes.spread(0, SIZE)
    monkeypatch.setattr(nodes, "usable", lambda: ())
    assert not nodes.spread(0, SIZE)
