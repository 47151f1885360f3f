"""The application in a pseudo terminal: what it leaves behind, whatever ends it, and what reaches it."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.tui.terminal import LIMIT_S, Screen, screen_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.tui.fakes import FakeBackend, Stall
from tui.app import run
from tui.messages import EndReason, Finished, Text
from tui.options import Options
EVIL = {evil!r}
backend = FakeBackend([[*(Text(c) for c in EVIL), Finished(EndReason.END)], [Text("Half a reply"), Stall()]])
if {broken!r}:
    def fail(*_): raise RuntimeError("a fault of ours")
    backend.snapshot = fail
sys.exit(run(Options(home=Path({home!r}), target="here:7300", model="olmoe-1b-7b"), lambda: backend))
"""
EVIL = "EVIL \x1b]0;pwned\x07\x1b[?1049l\x1b[2J\x9b31m\x1bP1$r0m\x1b\\\x1b]52;c;cHduZWQ=\x07 DONE"
LEFT = b"\x1b[?1049l"
ENTERED = b"\x1b[?1049h"


def screen(home: Path, *, broken: bool = False, **variables: str) -> AbstractContextManager[Screen]:
    """The application."""
    code = PROGRAM.format(root=str(ROOT), home=str(home), evil=EVIL, broken=broken)
    return screen_of([sys.executable, "-c", code], home, **variables)


def restored(output: bytes) -> bool:
    """The alternate screen is left for good, the cursor shown, the mouse let go, pasting plain again."""
    last = output.rpartition(ENTERED)[2]
    return all(code in last for code in (LEFT, b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l"))


def ready(shown: Screen) -> Screen:
    """Wait for the first screen with a model."""
    return shown.see("answers, with a context of")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_restore_the_terminal_and_keep_the_reply(home: Path, number: int, code: int) -> None:
    with screen(home) as shown:
        ready(shown)
        shown.write("one\r")
        shown.see("DONE")
        shown.write("two\r")
        shown.see("Half a reply")
        os.kill(shown.pid, number)
        assert shown.end() == code
        assert restored(shown.output)
    (saved,) = (home / "conversations").glob("*.md")
    assert "Half a reply" in saved.read_text()


def test_leaving_restores_the_terminal_and_no_control_of_a_model_got_through(home: Path) -> None:
    with screen(home) as shown:
        ready(shown)
        shown.write("one\r")
        shown.see("DONE")
        shown.write("/quit\r")
        assert shown.end() == 0
        assert restored(shown.output)
        for hostile in (b"\x1b]0;", b"\x1b]52;", b"\x1bP1$r", b"\x9b31m", b"\xc2\x9b", b"\x1b[2J\x1b"):
            assert hostile not in shown.output
        assert shown.output.count(LEFT) == 1
        assert "␛]0;pwned␇".encode() in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown.output)


def test_a_fault_restores_the_terminal(home: Path) -> None:
    with screen(home, broken=True) as shown:
        shown.wait(lambda output: LEFT in output, "the end")
        assert shown.end() != 0
        assert restored(shown.output)


def test_suspending_gives_the_terminal_back_and_returns(home: Path) -> None:
    with screen(home) as shown:
        ready(shown)
        shown.write("\x1a")
        shown.wait(restored, "the terminal back")
        for _ in range(int(LIMIT_S / 0.05)):
            _, status = os.waitpid(shown.pid, os.WUNTRACED | os.WNOHANG)
            if status and os.WIFSTOPPED(status):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("it did not stop")
        shown.output = b""
        os.kill(shown.pid, signal.SIGCONT)
        shown.wait(lambda output: ENTERED in output, "the screen again")
        shown.see("answers, with a context of")
        shown.write("\x11")
        assert shown.end() == 0
        assert restored(shown.output)


COLOURED = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.mark.parametrize(("variables", "coloured"), [({"NO_COLOR": "1"}, False), ({}, True)])
def test_no_colour_means_none(home: Path, variables: dict[str, str], coloured: bool) -> None:
    with screen(home, **variables) as shown:
        ready(shown)
        shown.write("/help set\r")
        shown.see("sampling and network settings")
        shown.write("\x11")
        assert shown.end() == 0
    assert bool(COLOURED.search(shown.output)) is coloured, COLOURED.findall(shown.output)[:5]


@pytest.mark.parametrize(("answer", "used"), [("on", True), ("off", False)])
def test_the_mouse_is_optional(home: Path, answer: str, used: bool) -> None:
    (home / "terminal.json").write_text(f'{{"mouse": "{answer}"}}')
    with screen(home) as shown:
        ready(shown)
        shown.write("\x11")
        assert shown.end() == 0
    assert (b"\x1b[?1000h" in shown.output) is used
