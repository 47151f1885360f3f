"""Fixtures for mirrors."""

from collections.abc import Iterator

import pytest

from mirror.cas import Store
from tests.clocks import WorkClock
from tests.mirror.simulated import MemoryDisk


@pytest.fixture
def clock() -> WorkClock:
    return WorkClock()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store("/store", files=MemoryDisk()) as opened:
        yield opened
