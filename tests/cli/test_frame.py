"""The frame: help without heavy imports, one line an error, exit codes, completion."""

import subprocess
import sys

import click
import pytest

from swarm.cli import frame
from swarm.cli.frame import COMMANDS, Commands, run, swarm


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys; from swarm.cli.frame import run; assert run(['--help']) == 0; "
        "heavy = {'numpy', 'trio', 'textual', 'numba', 'nacl', 'engine', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    for name, purpose in COMMANDS.items():
        assert name in shown.stdout
        assert purpose in shown.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_of_itself_what_the_list_says(name: str) -> None:
    command = Commands.get_command(swarm, click.Context(swarm), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == COMMANDS[name]


def test_unknown_commands_and_options_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 2
    assert run(["completion", "--loud"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "frobnicate" in lines[0]
    assert "--loud" in lines[1]
    assert "swarm completion --help" in lines[1]


def test_a_group_without_a_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: swarm key")
    assert "\n  rotate " in captured.err


@pytest.mark.parametrize("name", COMMANDS)
def test_lists_of_commands_are_whole_sentences(name: str) -> None:
    command = Commands.get_command(swarm, click.Context(swarm), name)
    assert command is not None
    help_text = command.get_help(click.Context(command, info_name=name, terminal_width=80))
    assert "..." not in help_text.partition("\nCommands:")[2]  # click cuts what is too long for a line


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("swarm ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_swarm(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_SWARM_COMPLETE" in capsys.readouterr().out


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(frame.swarm, "main", fail)


def after_an_interrupt() -> RuntimeError:
    """What an import makes of a Ctrl-C."""
    error = RuntimeError("Error calling __set_name__ on 'threadsafe_cached_property' instance")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(28, "No space left on device", "/far/away"), 1, "/far/away: the disk is full"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("division by zero"), 70, "fault in Swarm"),
        (ExceptionGroup("tasks", [OSError(98, "in use"), KeyError("x")]), 70, "KeyError"),
        (BaseExceptionGroup("tasks", [OSError(98, "in use"), KeyboardInterrupt()]), 130, ""),
        (
            ExceptionGroup("tasks", [ExceptionGroup("inner", [PermissionError(13, "no", "key")])]),
            1,
            "key: permission",
        ),
        (click.ClickException("told\nin two lines"), 1, "told in two lines"),
        (RuntimeError("\x1b]0;title\x07red"), 70, "title"),
        (after_an_interrupt(), 130, ""),
    ],
)
def test_every_error_is_one_clean_line(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raising(monkeypatch, error)
    monkeypatch.delenv("SWARM_DEBUG", raising=False)
    assert run([]) == code
    printed = capsys.readouterr().err
    assert text in printed
    assert printed.count("\n") == (1 if text else 0)
    assert "\x1b" not in printed
    assert "Traceback" not in printed


def test_debugging_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    monkeypatch.setenv("SWARM_DEBUG", "1")
    assert run([]) == 70
    assert "Traceback" in capsys.readouterr().err
