"""`swarm demo`: a swarm on this machine, in processes of its own, and a chat with it."""

import click


@click.command("demo", short_help="Run a small swarm on this machine and ask it something.")
@click.option("--tour", is_flag=True, help="Show what a swarm withstands, step by step; needs no terminal.")
@click.option("--question", metavar="TEXT", help="Ask a server this one thing and end, even on a terminal.")
@click.pass_context
def command(ctx: click.Context, tour: bool, question: str | None) -> None:
    """Run a small swarm on this machine and ask it something.

    Starts a tracker with the origin, two donors of compute and one of disk in processes of their own, joins
    them from an empty home, and opens the chat. Without a terminal, or with --tour, it shows what happens
    when a donor dies in mid reply, when one lies, and when everybody has left. Nothing is left behind.
    """
    from swarm.cli.demonstration import demonstrate

    if tour and question is not None:
        raise click.UsageError("--tour and --question exclude each other.")
    ctx.exit(demonstrate(question, tour))
