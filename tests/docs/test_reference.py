"""The reference of commands is what the code says."""

from pathlib import Path

from swarm.cli.frame import COMMANDS
from swarm.cli.reference import reference

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_reference_is_current() -> None:
    current = reference()
    assert (DOCS / "commands.md").read_text(encoding="utf-8") == current, (
        "run `python -m swarm.cli.reference > docs/commands.md`"
    )


def test_every_command_is_in_it() -> None:
    text = reference()
    assert [name for name in COMMANDS if f"## swarm {name}\n" not in text] == []
