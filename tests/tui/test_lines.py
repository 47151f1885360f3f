"""The line mode: the same conversation and commands, as plain lines and as JSON."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.peers.settings import remember
from tests.tui.fakes import MODELS, STATS, FakeBackend
from tests.tui.harmless import harmless
from tui.backend import Ask
from tui.conversation import Shelf
from tui.lines import run
from tui.messages import (
    EndReason,
    Event,
    Failed,
    Finished,
    Notice,
    NoticeKind,
    Phase,
    Progress,
    Reasoning,
    Retracted,
    Text,
)
from tui.options import Options

EVIL = "\x1b]0;pwned\x07 [b]x[/b]\u202e"


class Typed(io.StringIO):
    """Lines that somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


def chat(
    home: Path, *lines: str, backend: FakeBackend | None = None, typed: bool = False, **options: Any
) -> tuple[int, str, str]:
    """The exit code, and what was written to both streams."""
    output, errors = io.StringIO(), io.StringIO()
    wanted = {"target": "here:7300", "model": MODELS[0].name, **options}
    source = (Typed if typed else io.StringIO)("".join(line + "\n" for line in lines))
    fake = backend or FakeBackend()
    code = run(Options(home=home, **wanted), lambda: fake, source=source, output=output, errors=errors)
    return code, output.getvalue(), errors.getvalue()


def test_answers_go_to_output_and_all_else_to_errors(home: Path) -> None:
    code, output, errors = chat(home, "Hello", "", "two\\", "lines")
    assert code == 0
    assert output == "You said: Hello\nYou said: two\nlines\n"
    assert "You said" not in errors
    (name,) = Shelf(home / "conversations").names()
    assert len(Shelf(home / "conversations").load(name).turns) == 4


def test_what_was_due_to_a_lie_is_said_again(home: Path) -> None:
    script = [
        Text("The sky is green"),
        Retracted("donor 04 lied", "The sky is ", ""),
        Text("blue"),
        Retracted("donor 05 lied", "The sky is blue", ""),
        Text("."),
        Finished(EndReason.END, STATS),
    ]
    code, output, _ = chat(home, "Which colour?", backend=FakeBackend([script]))
    assert code == 0
    again = "[What stands above is wrong: donor 04 lied. The reply again:]"
    assert output == f"The sky is green\n{again}\nThe sky is blue.\n"
    (name,) = Shelf(home / "conversations").names()
    assert Shelf(home / "conversations").load(name).turns[-1].text == "The sky is blue."
    code, output, _ = chat(home, "Which colour?", backend=FakeBackend([script]), json=True)
    events = [json.loads(line) for line in output.splitlines()]
    kept = {"event": "retracted", "reason": "donor 04 lied", "text": "The sky is ", "reasoning": ""}
    assert kept in events


def test_commands_print_plain_tables(home: Path) -> None:
    code, output, errors = chat(
        home, "/swarm", "/model", "/stats", "/set", "/help", "/help set", "Hi", "/stats", "/find said"
    )
    assert code == 0, errors
    assert "3  disk+compute, relayed" in output
    assert "1 run by no donor, so here" in output
    assert "its answer for layer 2" in output
    assert "●  olmoe-1b-7b" in output
    assert "Nothing was answered yet." in output
    assert "/donate [KIND SIZE" in output
    assert "12,000 calls, 75 % by others" in output
    assert "2  assistant  You said: Hi" in output
    assert not [line for line in output.split("\n") if line != line.rstrip()]


def test_help_names_nothing_that_only_a_screen_has(home: Path) -> None:
    _, output, errors = chat(home, "/help", "/help edit", typed=True)
    assert "/help lists commands." in errors
    listed = output.split("\n")
    keys = listed[listed.index("Keys") + 1 :]
    assert [key.split("  ")[0] for key in keys[:2]] == ["\\ at the end of a line", "Ctrl-C"]
    for word in ("Enter", "Esc", "F1", "Tab", "editor", "keys and commands"):
        assert word not in output
    assert "print it, to be sent again" in keys[2]


def test_every_other_command(home: Path, tmp_path: Path) -> None:
    fake = FakeBackend()
    lines = ["/system Be brief.", "one", "/retry", "/save talk", "/copy", "/edit", "/new", "/load",
             "/load talk", f"/export {tmp_path}/x.json", "/set temp 0.5", "/set hedge 20",
             "/set reasoning shown", "/donate disk 5GB", "/donate pause", "/model qwen3-30b-a3b",
             "two", "/quit", "never"]  # fmt: skip
    code, output, errors = chat(home, *lines, backend=fake)
    assert code == 0, errors
    assert [ask.turns[-1].text for ask in fake.asked] == ["one", "one", "two"]
    assert fake.asked[-1].sampling.temperature == 0.5
    assert fake.tuned == [("hedge", "20")]
    assert fake.donated[-1].paused
    assert (tmp_path / "x.json").exists()
    assert "talk" in output
    assert fake.closed


def test_every_line_of_json_mode_is_an_object(home: Path) -> None:
    script = [Progress(Phase.PREFILL, 1, 2), Reasoning("hm"), Text("Hi"), Notice(NoticeKind.HEDGE, "x"),
              Finished(EndReason.END, STATS)]  # fmt: skip
    code, output, errors = chat(
        home, "Hello", "/swarm", "/model", "/stats", "/nonsense", backend=FakeBackend([script]), json=True
    )
    events = [json.loads(line) for line in output.splitlines()]
    kinds = [event["event"] for event in events]
    assert {
        "connected",
        "ready",
        "progress",
        "reasoning",
        "text",
        "finished",
        "swarm",
        "models",
        "table",
    } <= {*kinds}
    assert next(event for event in events if event["event"] == "finished")["stats"]["reply_tokens"] == 128
    assert next(event for event in events if event["event"] == "swarm")["peers"][2]["relayed"] is True
    assert kinds[-1] == "error"
    assert errors == ""
    assert code == 1


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (FakeBackend(connecting=[[Failed("Nobody answers at here:7300.")]]), "Nobody answers"),
        (FakeBackend(opening=[[Failed("No space left.")]]), "No space left"),
    ],
)
def test_what_does_not_open_ends_with_a_line_and_a_code(home: Path, backend: FakeBackend, why: str) -> None:
    code, output, errors = chat(home, "Hello", backend=backend)
    assert (code, output) == (1, "")
    assert why in errors
    assert backend.closed


def test_which_model_must_be_clear_and_is_remembered(home: Path) -> None:
    code, _, errors = chat(home, "Hello", model=None)
    assert code == 1
    assert "Give --model NAME; this swarm has: olmoe-1b-7b, qwen3-30b-a3b, glm-air." in errors
    remember(home / "settings.json", swarm="there:7300", model=MODELS[1].name)
    fake = FakeBackend()
    assert chat(home, "Hello", model=None, target=None, backend=fake)[0] == 0
    assert fake.joined == ["there:7300"]


def test_without_any_swarm_it_says_what_to_give(home: Path) -> None:
    code, _, errors = chat(home, target=None)
    assert code == 2
    assert "--tracker HOST" in errors


def test_the_code_is_that_of_the_last_thing_asked(home: Path) -> None:
    fails = [Text("a"), Failed("No replica.", offline=True)]
    assert chat(home, "x", backend=FakeBackend([fails]))[0] == 1
    assert chat(home, "x", "y", backend=FakeBackend([fails]))[0] == 0


def test_hostile_text_is_only_text(home: Path) -> None:
    script = [Progress(Phase.FETCHING, detail=EVIL), *(Text(letter) for letter in EVIL),
              Notice(NoticeKind.BAN, EVIL), Failed(EVIL)]  # fmt: skip
    _, output, errors = chat(home, EVIL, "/swarm", "/load " + EVIL, backend=FakeBackend([script]))
    assert harmless(output)
    assert harmless(errors)
    assert "[b]x[/b]" in output


def test_an_unknown_operator_is_shown(home: Path) -> None:
    _, _, errors = chat(home, backend=FakeBackend(known=False))
    assert "The operator's key is 7f3a 91c2" in errors


def test_the_line_mode_imports_neither_textual_nor_the_engine() -> None:
    names = "('textual', 'engine', 'numba', 'trio')"
    code = f"import sys, tui.lines; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_reply_waits_for_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.lines._LOOK_S", 0.01)
    backend = Pausing([[Progress(Phase.PREFILL), Text("Hello."), Finished(EndReason.END, STATS)]])
    backend.held_up = Progress(Phase.COMPILING)
    _, output, errors = chat(home, "Hi", backend=backend)
    assert output == "Hello.\n"
    assert errors.splitlines().count("compiling kernels") == 1


class Pausing(FakeBackend):
    """Takes a moment before each event of a reply but the first."""

    def ask(self, request: Ask) -> Iterator[Event]:
        """See `FakeBackend`."""
        for event in super().ask(request):
            yield event
            time.sleep(0.1)
