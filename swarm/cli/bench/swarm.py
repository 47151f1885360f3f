"""`swarm bench swarm`: experts on peers, on this machine: overhead, empty rounds, delay, hedging, drafts."""

from dataclasses import asdict
from typing import Any

import click

from swarm.cli.bench.shape import made_up

PARTS = ("empty", "overhead", "delay", "hedge", "drafts")


@click.command("swarm", short_help="Experts on peers: overhead, empty rounds, delay, hedging, drafts.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; by default all.")
@click.option("--shape", default="olmoe-1b-7b", show_default=True, help="The shape of the model.")
@click.option("--experts", type=click.IntRange(min=8), default=16, show_default=True, help="Experts a layer.")
@click.option("--layers", type=click.IntRange(min=1), help="Layers; by default those of the shape.")
@click.option("--tokens", type=click.IntRange(min=2), default=24, show_default=True, help="Decoded a run.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--rounds", type=click.IntRange(min=200), default=2000, show_default=True, help="Layers asked.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    parts: tuple[str, ...],
    shape: str,
    experts: int,
    layers: int | None,
    tokens: int,
    runs: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure experts on peers, all on this machine, with made-up weights of a real shape.

    empty: a layer's round with experts that compute nothing, encrypted, one donor process. overhead: decoding
    with all experts in one donor process, beside local decoding, in turns. delay: behind a proxy that adds a
    round trip, beside 1 / (layers × round trip + local compute). hedge: two donors that delay 5 % of calls by
    250 ms each. drafts: replies that repeat their prompt and others, behind the proxy, with tokens guessed and
    without.
    """
    from swarm.cli.output import emit_json, say, table

    wanted = parts or PARTS
    found: dict[str, Any] = {"shape": shape, "experts": experts, "layers": layers}
    for part in wanted:
        say(f"Measuring {part} …")
        found[part] = _measure(part, made_up(shape, experts, layers, 512), tokens, runs, rounds)
    if as_json:
        emit_json(found)
        return
    print(table(("", "figure", "value"), [row for part in wanted for row in _rows(part, found[part])]))


def _measure(part: str, config: Any, tokens: int, runs: int, rounds: int) -> Any:
    from engine.engine import Engine, Options
    from engine.kernels import expect_pauses
    from engine.synthetic import SyntheticSource
    from swarm.peers import bench

    if part == "empty":
        return asdict(bench.empty_round(config, rounds))
    if part == "hedge":
        return {name: asdict(times) for name, times in bench.hedging(config, rounds, 0.05, 0.25).items()}
    expect_pauses()  # as whoever joins a swarm does
    with Engine.open(SyntheticSource(config), Options("q8")) as engine:
        if part == "overhead":
            speeds = bench.overhead(engine, config, tokens, runs)
            return asdict(speeds) | {"ratio": speeds.ratio}
        if part == "drafts":
            from swarm.peers.drafts_bench import drafting

            return [asdict(one) for one in drafting(engine, config, [0.0, 0.02], 2 * tokens)]
        return bench.delayed(engine, config, [0.005, 0.01, 0.02, 0.03], tokens)


def _rows(part: str, found: Any) -> list[tuple[str, str, str]]:
    if part == "empty":
        return [
            (part, name.replace("_ms", ""), f"{found[name]} ms") for name in ("p50_ms", "p95_ms", "p99_ms")
        ]
    if part == "hedge":
        return [
            (
                part,
                f"hedge {name}",
                f"p50 {times['p50_ms']} ms, p95 {times['p95_ms']} ms, p99 {times['p99_ms']} ms",
            )
            for name, times in found.items()
        ]
    if part == "overhead":
        return [
            (part, "local", f"{found['local']:.2f} tokens/s"),
            (part, "one donor", f"{found['remote']:.2f} tokens/s"),
            (part, "ratio", f"{found['ratio']:.3f}"),
        ]
    if part == "drafts":
        return [
            (
                part,
                f"{one['round_trip_ms']:.0f} ms, {what}",
                f"{one[name]:.2f} tokens/s, {one[f'{name}_without']:.2f} without",
            )
            for one in found
            for what, name in (("repeating", "repeated"), ("not repeating", "other"))
        ]
    return [
        (
            part,
            f"{one['round_trip_ms']:.0f} ms",
            f"{one['tokens_per_s']:.2f} tokens/s, {one['share']:.2f} of the bound",
        )
        for one in found
    ]
