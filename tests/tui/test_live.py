"""The application in a pseudo terminal over a real swarm of processes, one of which dies in mid reply."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from swarm.demo.generated import Shape, write_checkpoint
from tests.e2e.processes import command, environment, serving, swarm
from tests.tui.terminal import screen_of
from tui.conversation import Shelf

QUESTION = "Tell me something long."
TOKENS = "400"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small checkpoint that does not end a reply soon."""
    write_checkpoint(tmp_path / "model", Shape(layers=4, experts=16))
    return tmp_path / "model"


def test_a_donor_killed_in_mid_reply_changes_no_token(home: Path, model: Path, tmp_path: Path) -> None:
    settings = ("--temperature", "0", "--max-tokens", TOKENS)
    alone = swarm(tmp_path / "alone", "chat", "--local", model, *settings, stdin=QUESTION + "\n")
    assert alone.returncode == 0, alone.stderr

    with serving(tmp_path / "server", model) as served:
        chat = command("chat", served.invite, *settings)
        with screen_of(chat, home, **{**environment(home), "TERM": "xterm-256color"}) as shown:
            shown.see("answers, with a context of")
            shown.write(QUESTION + "\r")
            shown.see("by others")
            os.kill(served.running.process.pid, signal.SIGKILL)
            shown.see("out of reach")
            shown.see(f"{TOKENS} tokens")
            shown.write("\x11")
            assert shown.end() == 0
    (name,) = Shelf(home / "conversations").names()
    reply = Shelf(home / "conversations").load(name).turns[-1].text
    assert reply.strip() == alone.stdout.strip()
