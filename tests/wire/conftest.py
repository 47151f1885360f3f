"""What a log of a server must not hold after strangers came."""

import logging
from typing import Any

import pytest


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of this is worth more than a line of information in the log."""
    caplog.set_level(logging.WARNING)


@pytest.fixture
def nothing_failed_inside(caplog: pytest.LogCaptureFixture) -> Any:
    """No stranger may bring the software into a state that it did not foresee."""
    yield
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
