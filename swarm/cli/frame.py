"""The frame around every command: finding it, its errors in one line, its exit code.

A command lives in `swarm.cli.NAME` as `command`; it is imported only when it is called. Whatever it
raises ends here as one line on standard error that says what to do. `SWARM_DEBUG=1` shows the traceback.

Exit codes: 0 done, 1 failed, 2 wrong usage, 70 a fault of ours, 130 interrupted.
"""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import click

from swarm.cli.output import say
from swarm.cli.problems import explain
from swarm.cli.streams import drop_output

COMMANDS = {
    "serve": "Serve a model directory to a swarm.",
    "chat": "Chat with a model of a swarm, or with a local one.",
    "donate": "Lend compute or disk to a swarm.",
    "api": "Answer programs that speak OpenAI's API, and serve a page.",
    "models": "List the models of a swarm.",
    "logits": "Write a model's logits for given token ids.",
    "mount": "Show a model of a swarm as a read-only directory.",
    "cache": "Look after the chunks kept on this machine.",
    "audit": "Read the proof of a wrong answer.",
    "tracker": "Run a tracker that serves no model itself.",
    "config": "Show and change what is remembered.",
    "key": "Look after the operator's key.",
    "doctor": "Look for what could keep Swarm from working here.",
    "bench": "Measure what this machine reaches.",
    "demo": "Run a small swarm on this machine and ask it something.",
    "completion": "Print the completion script of a shell.",
}
INTERRUPTED = 130


class Commands(click.Group):
    """The commands of `COMMANDS`, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None for click to report."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"swarm.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list for `--help` without importing a single command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("swarm-moe")
    except PackageNotFoundError:
        number = "(from a source tree)"
    click.echo(f"swarm {number}")
    ctx.exit()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.pass_context
def swarm(ctx: click.Context) -> None:
    """Run mixture-of-experts models that no single machine of yours can hold, from a swarm of ordinary ones.

    Without a command: chat, asking once for what is needed.
    """
    if ctx.invoked_subcommand is None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            click.echo(ctx.get_help())
            return
        chat = Commands.get_command(swarm, ctx, "chat")
        assert chat is not None
        ctx.invoke(chat)


def run(arguments: Sequence[str], *, interruptible: bool = False) -> int:
    """Runs one command line and gives its exit code; prints what went wrong in one line.

    When `interruptible`, a Ctrl-C raises KeyboardInterrupt from here on.
    """
    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        outcome = swarm.main(args=list(arguments), prog_name="swarm", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary: no traceback reaches a user
        return _report(error)
    except BaseExceptionGroup as group:
        return _report(group)


def _report(error: BaseException) -> int:
    if os.environ.get("SWARM_DEBUG"):
        traceback.print_exception(error)
    problem = explain(error)
    if problem.output_lost:
        drop_output()
    if problem.help:
        click.echo(problem.help, err=True)
    if problem.text:
        say(f"swarm: {problem.text}")
    return problem.exit_code
