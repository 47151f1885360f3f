"""`swarm bench context`: what a token costs after many others."""

from dataclasses import asdict

import click


@click.command("context", short_help="What a token costs after many others, by family.")
@click.option(
    "--family",
    "families",
    multiple=True,
    metavar="TYPE",
    help="Only this model type; may be given more than once.",
)
@click.option(
    "--positions",
    multiple=True,
    type=click.IntRange(min=1),
    default=(1024, 4096, 16384),
    show_default=True,
    help="After so many tokens; may be given more than once.",
)
@click.option(
    "--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Measured runs of each kind."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads; by default one a physical core.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    families: tuple[str, ...], positions: tuple[int, ...], runs: int, threads: int | None, as_json: bool
) -> None:
    """Measure a token's milliseconds and a sequence's memory after many tokens, in narrow models of each family.

    Their weights are made up, heads and latents as wide as the releases' ones; routed experts, which cost the same
    after any number of tokens, are left out. Figures are medians of --runs runs.
    """
    from engine.context_bench import SHAPES, costs, model_of
    from engine.kernels import set_threads
    from swarm.cli.output import emit_json, say, table
    from swarm.units import format_bytes

    used = set_threads(threads)
    figures = {}
    for name in families or SHAPES:
        say(f"Measuring {name} …")
        figures[name] = costs(model_of(name), positions, runs)
    if as_json:
        measured = {name: [asdict(cost) for cost in found] for name, found in figures.items()}
        emit_json({"threads": used, "families": measured})
        return
    rows = [
        (
            name,
            *(f"{cost.median_s * 1e3:.2f}" for cost in found),
            format_bytes(found[-1].state_bytes),
            SHAPES[name][0],
        )
        for name, found in figures.items()
    ]
    after = (f"ms after {count:,}" for count in positions)
    print(table((f"family ({used} threads)", *after, "memory", "attends to"), rows))
