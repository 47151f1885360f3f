"""`swarm completion SHELL`: the script that makes a shell complete Swarm's commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: `eval "$(swarm completion bash)"` in ~/.bashrc; zsh alike; for fish, write it to
    ~/.config/fish/completions/swarm.fish.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    root = ctx.find_root().command
    click.echo(completion(root, {}, "swarm", "_SWARM_COMPLETE").source())
