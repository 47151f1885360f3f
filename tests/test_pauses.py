"""Pauses grow to a longest one and stay there, however often something fails."""

import pytest

from swarm.pauses import pause_s


@pytest.mark.parametrize(
    ("failures", "expected_s"),
    [(0, 0.5), (1, 1.0), (6, 32.0), (7, 60.0), (1023, 60.0), (1024, 60.0), (10**9, 60.0)],
)
def test_a_pause_doubles_up_to_the_longest(failures: int, expected_s: float) -> None:
    assert pause_s(0.5, failures, 60.0) == expected_s
