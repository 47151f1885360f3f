"""Every figure of docs/figures.md names a command that exists, with options that it takes."""

import re
import shlex
from pathlib import Path

import click
import pytest

from swarm.cli.frame import swarm

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in (ROOT / "docs" / "figures.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("| what", "|---"))
]
COMMANDS = sorted({row[2].strip("`") for row in ROWS})


def test_each_row_has_a_figure_and_a_command() -> None:
    assert len(ROWS) >= 15
    for row in ROWS:
        assert len(row) == 3
        assert row[1] == "—" or re.search(r"\d", row[1]), row
        assert re.fullmatch(r"`[^`]+`", row[2]), row


@pytest.mark.parametrize("line", COMMANDS)
def test_its_command_exists(line: str) -> None:
    words = shlex.split(line.removesuffix("</dev/null"))
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif words[:3] == ["python", "-m", "pytest"]:
        assert (ROOT / words[3]).is_file()
    elif words[0] == "python":
        name = words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1]
        assert (ROOT / name).is_file()
    else:
        assert words.pop(0) == "swarm"
        command: click.Command = swarm
        context = click.Context(swarm, info_name="swarm")
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None
            command = found
        assert command.make_context(line, words).args == []
