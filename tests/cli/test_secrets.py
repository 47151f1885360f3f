"""Secrets from files: whatever takes one on its command line takes it from a file, too."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from swarm.cli.frame import swarm
from swarm.cli.options import invite_of_environment, parse_target
from swarm.cli.secrets import MOST_BYTES, read_secret, read_target, secret_option

SECRETS = {"--token", "--api-key"}


@click.command
@secret_option("api-key", "The key.", metavar="KEY", envvar="SOME_KEY")
def shown(api_key: str | None) -> None:
    click.echo(repr(api_key))


def said(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(shown, arguments, env=environment)
    return result.output.strip() if result.exit_code == 0 else f"{result.exit_code}: {result.output}"


def test_a_secret_comes_from_the_command_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("\tof the file \n")
    assert said() == "None"
    assert said("--api-key", "given") == "'given'"
    assert said(SOME_KEY="of the environment") == "'of the environment'"
    assert said("--api-key-file", str(file)) == "'of the file'"
    assert said("--api-key-file", str(file), SOME_KEY="of the environment") == "'of the file'"
    for both in (
        ("--api-key", "x", "--api-key-file", str(file)),
        ("--api-key-file", str(file), "--api-key", "x"),
    ):
        assert "exclude each other" in said(*both)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b" \n", "is empty"),
        (b"x" * (MOST_BYTES + 1), "more than"),
        (b"\xff\xfe", "not text"),
        (None, "(?i)no such file"),
    ],
)
def test_a_file_without_a_secret_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(click.BadParameter, match=reason) as told:
        read_secret(str(file))
    assert str(file) in str(told.value)
    if content is not None and len(content) > 3:
        assert content.decode() not in str(told.value)


def test_an_invite_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "invite"
    file.write_text("swarm://x\n")
    assert parse_target(f"@{file}", None) == "swarm://x"
    assert parse_target(None, f"@{file}") == "swarm://x"
    assert read_target("swarm://y") == "swarm://y"
    monkeypatch.setenv("SWARM_INVITE", f"@{file}")
    assert invite_of_environment() == "swarm://x"


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, info_name=name, parent=context))
        else:
            yield f"{context.command_path} {name}", command


def test_every_secret_on_a_command_line_has_a_file_beside_it() -> None:
    found = 0
    for path, command in commands(swarm, click.Context(swarm, info_name="swarm")):
        options = {name for parameter in command.params for name in parameter.opts}
        for name in SECRETS & options:
            found += 1
            assert f"{name}-file" in options, f"{path} {name}"
    assert found >= 14
