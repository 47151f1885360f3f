"""Every command block of README and DEPLOY does what it says.

A block is preceded by a comment: `<!-- test: run -->`, `<!-- test: run fuse -->`, or `<!-- test: skip REASON -->`
where it installs something or needs root. What runs, runs in an empty home beside a swarm of a tiny model:
addresses, invites, ports and paths of the text are replaced by those of the test. Commands that go on are ended
when they have said that they are ready.
"""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm.trust.identity import Identity
from tests.conftest import missing
from tests.e2e.processes import ROOT, environment, running, serving

BLOCK = re.compile(
    r"(?:<!-- test: (?P<how>\w+)(?: (?P<why>[\w ]+))? -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL
)
REASONS = {"installs", "needs root"}
GOES_ON = {
    "serve": r"Ctrl-C ends it|Running experts",
    "tracker": r"Tracking at",
    "donate": r"ready",
    "mount": r"mounted|is at|unmount|Ctrl-C",
    "api": r"http://",
}
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Block:
    """A block of commands in a page."""

    page: str
    line: int
    how: str
    why: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its commands, without comments."""
        joined = self.text.replace("\\\n", " ")
        return [line for raw in joined.splitlines() if (line := re.sub(r"\s+#\s.*$", "", raw).strip())]


def blocks() -> list[Block]:
    """All blocks of the pages."""
    found = []
    for page in ("README.md", "DEPLOY.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match["how"] or "", match["why"] or "", match["text"]))
    return found


BLOCKS = blocks()
RUN = [block for block in BLOCKS if block.how == "run"]


def test_every_block_says_how_it_is_tested() -> None:
    assert len(RUN) >= 20
    for block in BLOCKS:
        place = f"{block.page}:{block.line}"
        assert block.how in ("run", "skip"), f"{place} does not say how it is tested"
        assert block.how == "run" or block.why in REASONS, f"{place} is skipped for no known reason"
        assert block.how == "skip" or "sudo" not in block.text, f"{place} needs root"


@pytest.fixture(scope="module")
def swarm(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """The model's directory, and address and invite of a swarm that serves it."""
    folder = tmp_path_factory.mktemp("swarm")
    with serving(folder / "home", oracle / "qwen3_moe") as served:
        yield oracle / "qwen3_moe", served.address, served.invite


@pytest.fixture(scope="module")
def trackers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The invite of a tracker without models."""
    where = ("--listen", "127.0.0.1", "--port", "0", "--json")
    with running(tmp_path_factory.mktemp("tracker"), "tracker", *where) as tracker:
        yield tracker.event("tracking")["invite"]


def free_port() -> int:
    """A port that is free now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def adapted(command: str, address: str, invite: str, empty: str) -> str:
    """A command of the text, for the swarm of the test and for this machine only."""
    new = "serve" in command and "--join" not in command
    text = re.sub(r"swarm://…", empty if new else invite, command)
    text = (
        text.replace("192.0.2.7", address)
        .replace("--size 20GB", "--size 20MB")
        .replace("--ram 8GB", "--ram 200MB")
    )
    text = re.sub(r"--advertise \S+", "", text)
    text = re.sub(r"--metrics 9300", "--metrics 0", text)
    text = re.sub(r"--port \d+", lambda _: f"--port {free_port()}", text)
    if re.search(r"swarm (serve|tracker|donate)\b", text):
        text += " --listen 127.0.0.1"
        if "--port" not in text:
            text += " --port 0"
    if "swarm api" in text:
        text += f" --port {free_port()}"
    return text


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_does_what_it_says(
    block: Block, swarm: tuple[Path, str, str], trackers: str, tmp_path: Path
) -> None:
    model, address, invite = swarm
    if block.why == "fuse" and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        missing("/dev/fuse cannot be opened")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Qwen3-30B-A3B").symlink_to(model)
    Identity.load_or_create(tmp_path / "keys" / "operator.key")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "swarm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m swarm "$@"\n')
    program.chmod(0o755)
    variables = environment(tmp_path / ".local" / "share" / "swarm")
    variables |= {"HOME": str(tmp_path), "PATH": f"{programs}{os.pathsep}{variables['PATH']}"}
    for command in block.commands:
        text = adapted(command, address, invite, trackers)
        verb = re.match(r"swarm (\w+)", text)
        if verb and verb[1] in GOES_ON:
            run_until(text, GOES_ON[verb[1]], variables, tmp_path)
        else:
            done = subprocess.run(
                ["bash", "-euc", text], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=PATIENCE_S, env=variables, cwd=tmp_path, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def run_until(text: str, ready: str, variables: dict[str, str], folder: Path) -> None:
    """Runs a command until it says that it is ready, then interrupts it; it ends with 0."""
    with started(text, variables, folder) as process:
        said: list[str] = []
        timer = threading.Timer(PATIENCE_S, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if re.search(ready, line):
                break
        else:
            timer.cancel()
            raise AssertionError(f"{text} ended before it was ready:\n{''.join(said)}")
        process.terminate()
        said += process.stdout.readlines()
        timer.cancel()
        assert process.wait() == 0, f"{text}\n{''.join(said)}"


@contextmanager
def started(text: str, variables: dict[str, str], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs for the length of a block; its output and errors are one stream."""
    with subprocess.Popen(
        ["bash", "-euc", f"exec {text}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env=variables, cwd=folder,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
