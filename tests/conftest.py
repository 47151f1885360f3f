"""What every test shares: the reference folders, an empty home, and skips that CI turns into failures."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Where the shell started us in the background, Ctrl-C is ignored by us and by all that we start; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair. The proof of a version is the same each time it is run; whoever
# works on it searches further with every run.
settings.register_profile("search", deadline=None)
settings.register_profile("proof", deadline=None, derandomize=True)
settings.load_profile("proof" if os.environ.get("SWARM_REQUIRE_ALL") else "search")

SHARED = Path(os.environ.get("SWARM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def missing(reason: str) -> None:
    """Skips a test for want of something; fails it instead where everything is required."""
    if os.environ.get("SWARM_REQUIRE_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The folder of tiny reference checkpoints with their answers."""
    folder = SHARED / "oracle"
    if not folder.is_dir():
        missing(f"reference checkpoints not found at {folder}")
    return folder


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of published test vectors."""
    folder = SHARED / "vectors"
    if not folder.is_dir():
        missing(f"test vectors not found at {folder}")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home: every file the software keeps goes below it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("SWARM_HOME", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    return folder
