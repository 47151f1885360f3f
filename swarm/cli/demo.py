"""`swarm demo`: a swarm on this machine, in processes of its own, and a chat with it."""

import click


@click.command("demo", short_help="Run a small swarm on this machine and ask it something.")
@click.option("--question", metavar="TEXT", help="Ask this one thing and end, even on a terminal.")
@click.pass_context
def command(ctx: click.Context, question: str | None) -> None:
    """Run a small swarm on this machine and ask it something.

    Starts a server in a process of its own, joins it from an empty home, and opens the chat. Without a
    terminal one question is asked, the answer printed, and everything cleaned up.
    """
    from swarm.cli.demonstration import demonstrate

    ctx.exit(demonstrate(question))
