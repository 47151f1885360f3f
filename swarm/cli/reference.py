"""Writes the reference of all commands from themselves: `python -m swarm.cli.reference > docs/commands.md`.

A test holds that file to what this prints.
"""

from collections.abc import Iterator
from inspect import cleandoc

import click

from swarm.cli.frame import swarm

HEAD = """\
# Commands

Written from the code by `python -m swarm.cli.reference > docs/commands.md`; do not edit.

`swarm` alone opens the chat, asking once for what is needed. Exit codes: 0 done, 1 failed, 2 wrong usage,
70 a fault in Swarm, 130 interrupted. `SWARM_HOME` moves everything that Swarm keeps below one directory;
`SWARM_DEBUG=1` shows where an error came from. What stands in a command can be read by everybody on the machine,
so an invite can also be given as `@FILE`, a token and an API key by `--token-file FILE` and `--api-key-file FILE`;
`SWARM_INVITE` (an invite, or `@FILE`) is the swarm when a command names none.
"""


def reference() -> str:
    """All commands as Markdown."""
    context = click.Context(swarm, info_name="swarm")
    sections = [HEAD]
    for name in swarm.list_commands(context):
        command = swarm.get_command(context, name)
        assert command is not None
        sections += _sections(command, click.Context(command, info_name=name, parent=context), 2)
    return "\n".join(sections)


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
    text = cleandoc(command.help or command.short_help or "")
    yield f"{'#' * level} {context.command_path}\n\n    {context.command_path} {usage}\n\n{text}\n"
    if rows := list(_options(command, context)):
        yield "\n".join(["| option | |", "|---|---|", *rows, ""])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _sections(inner, click.Context(inner, info_name=name, parent=context), level + 1)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            names, text = (part.replace("|", "\\|") for part in record)
            yield f"| `{names}` | {text} |"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
