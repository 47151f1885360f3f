"""`swarm chat`: a conversation, with a model of a swarm or with a directory on this machine.

On a terminal it opens the application; elsewhere it reads questions line by line and writes plain answers.
"""

import sys
from pathlib import Path

import click

from swarm.cli.asking import NO_TOKEN_NEEDED, NOBODY_TO_TRACE, asking_options, drafts_option
from swarm.cli.options import (
    DIRECTORY,
    invite_of_environment,
    parse_target,
    sampling_options,
    swarm_options,
    threads_option,
    weights_options,
)


@click.command("chat", short_help="Chat with a model of a swarm, or with a local one.")
@swarm_options
@click.option(
    "--local", type=DIRECTORY, metavar="DIR", help="A model directory or GGUF file here; needs no network."
)
@click.option("--model", metavar="NAME", help="Which model, where the swarm has several.")
@click.option("--offline", is_flag=True, help="Use what was fetched before, and no network.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@sampling_options
@weights_options
@threads_option
@asking_options
@drafts_option
@click.option("--plain", is_flag=True, help="Line by line, even on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Line by line, one JSON object a line.")
@click.pass_context
def command(
    ctx: click.Context,
    invite: str | None,
    tracker: str | None,
    token: str | None,
    local: Path | None,
    model: str | None,
    offline: bool,
    system: str | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repeat_penalty: float | None,
    seed: int | None,
    max_tokens: int | None,
    weights: str,
    expert_ram: int | None,
    hedge: str,
    audit: float,
    trace: Path | None,
    drafts: bool,
    plain: bool,
    as_json: bool,
) -> None:
    """Chat with a model of a swarm, or with a local one.

    INVITE is what `swarm serve` printed: where the swarm is and whose signature counts. Without it and
    without --tracker the swarm used last is taken, by whatever command.

    Off a terminal, and on one that cannot move its cursor (TERM=dumb), each line of standard input is a
    question, and the answer is plain text on standard output.
    """
    from swarm.peers.settings import home
    from swarm.system import moves_cursor
    from tui.options import Options, Sampling

    target = parse_target(invite, tracker)
    if target and local:
        raise click.UsageError("Give a swarm or --local DIR, not both.")
    if token is not None and local:
        raise click.UsageError(NO_TOKEN_NEEDED)
    if trace is not None and (local or offline):
        raise click.UsageError(NOBODY_TO_TRACE)
    options = Options(
        home=home().data,
        target=target if target or local else invite_of_environment(),
        local=local,
        model=model,
        sampling=Sampling(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            seed=seed,
            max_tokens=max_tokens,
        ),
        system=system,
        weights=weights,
        token=token,
        offline=offline,
        expert_ram_bytes=expert_ram,
        hedge=hedge,
        audit=audit,
        trace=trace,
        drafts=drafts,
        json=as_json,
    )
    on_terminal = sys.stdin.isatty() and moves_cursor(sys.stdout)
    if on_terminal and not plain and not as_json:
        from tui.app import run
    else:
        from tui.lines import run
    ctx.exit(run(options))
