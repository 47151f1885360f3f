"""`swarm doctor`: looks at this machine and, when a swarm is named, at the way there and back."""

import click

from swarm.cli.options import Whole, swarm_options

MARKS = {"good": "ok", "note": "note", "bad": "FAILS"}


@click.command("doctor", short_help="Look for what could keep Swarm from working here.")
@swarm_options
@click.option(
    "--port", type=Whole(0, 65535), default=7300, show_default=True, help="Where this would listen."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.pass_context
def command(
    ctx: click.Context, invite: str | None, tracker: str | None, token: str | None, port: int, as_json: bool
) -> None:
    """Look for what could keep Swarm from working here, and say what to do about it.

    With an invite or --tracker it also asks that tracker, compares clocks, and has it dial back to see
    whether others can reach this machine. Exit code 1 when something essential fails.
    """
    from dataclasses import asdict

    import trio

    from swarm.cli.options import invite_of_environment, parse_target
    from swarm.cli.output import emit_json
    from swarm.errors import clean_text
    from swarm.peers import target
    from swarm.peers.checkup import Finding, checks_of
    from swarm.peers.reachable import ask_tracker
    from swarm.peers.settings import home

    place = parse_target(invite, tracker) or invite_of_environment()
    where = None if place is None else target.parse_target(place, token)
    failed = noted = 0

    def show(finding: Finding) -> None:
        nonlocal failed, noted
        failed += finding.state == "bad"
        noted += finding.state == "note"
        if as_json:
            emit_json(asdict(finding))
            return
        click.echo(f"{MARKS[finding.state]:>5}  {finding.subject + ':':<14}{clean_text(finding.text)}")
        if finding.remedy:
            click.echo(f"{'':7}{'':14}→ {clean_text(finding.remedy)}")

    for check in checks_of(home(), port):
        for finding in check():
            show(finding)
    if where is not None:
        for finding in trio.run(ask_tracker, where, port):
            show(finding)
    if not as_json:
        if where is None:
            click.echo(
                "\nNo swarm was asked; `swarm doctor INVITE` also looks whether others can reach this machine."
            )
        click.echo(f"\n{_sum(failed, noted)}")
    ctx.exit(1 if failed else 0)


def _sum(failed: int, noted: int) -> str:
    """The findings in a sentence."""
    worse = f"{failed} failed" if failed else "Nothing essential fails"
    return f"{worse}; {noted} to improve." if noted else f"{worse}."
