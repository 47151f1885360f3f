"""What a compute donor gives of its machine."""

import pytest

from swarm.peers.donor import RESERVE_BYTES, SHARE_OF_MEMORY, Offer, memory_for

GIB = 1 << 30


@pytest.mark.parametrize(
    ("offered", "free", "given"),
    [
        (None, 100 * GIB, int(100 * GIB * SHARE_OF_MEMORY)),
        (None, 2 * GIB, 2 * GIB - RESERVE_BYTES),
        (None, RESERVE_BYTES // 2, 0),
        (3 * GIB, 100 * GIB, 3 * GIB),
        (3 * GIB, 2 * GIB, 2 * GIB - RESERVE_BYTES),
        (3 * GIB, 0, 0),
    ],
)
def test_the_machine_keeps_its_reserve_whatever_was_offered(
    offered: int | None, free: int, given: int
) -> None:
    assert memory_for(Offer(ram_bytes=offered), free) == given
