"""`swarm bench engine`: load, prefill and decode of one model."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from swarm.cli.bench.shape import made_up, run_options, shape_options, source
from swarm.cli.options import DIRECTORY, weights_options


@click.command("engine", short_help="Load, prefill and decode of one model.")
@click.option("--model", "directory", type=DIRECTORY, metavar="DIR", help="Measure this checkpoint instead.")
@shape_options
@weights_options
@run_options
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=0,
    help="Decode after so many tokens, beside decoding after a few.",
)
@click.option(
    "--together", type=click.IntRange(min=0), default=0, help="Also decode so many sequences together."
)
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path | None,
    shape: str,
    experts: int | None,
    layers: int | None,
    weights: str,
    expert_ram: int | None,
    threads: int | None,
    prompt: int,
    runs: int,
    as_json: bool,
    context: int,
    together: int,
) -> None:
    """Measure load time, prefill and decode tokens/s, bytes a second beside a plain read of memory, and peak memory.

    Figures are medians of --runs runs with their quartiles.
    """
    import time

    from engine.bench import matmul_speed, read_speed
    from engine.engine import Engine, Options
    from engine.kernels import set_threads
    from engine.speed import DECODED, Figure, Subject, active_bytes, active_macs, kernel_kind, peak_bytes
    from swarm.cli.output import emit_json, say, table
    from swarm.units import format_bytes

    made = ctx.get_parameter_source("shape") != click.core.ParameterSource.DEFAULT
    if directory is not None and (made or experts is not None or layers is not None):
        raise click.UsageError(
            "--shape, --experts and --layers are for made-up weights; --model DIR is as it is."
        )
    used = set_threads(threads)
    config = {} if directory else made_up(shape, experts, layers, max(prompt, context + DECODED))
    what = str(directory) if directory else f"{shape}, {config['num_experts']} experts, made-up weights"
    say(f"Loading {what} …")
    begun = time.perf_counter()
    with Engine.open(source(directory, config), Options(weights, expert_ram)) as engine:  # type: ignore[arg-type]
        dense_s = time.perf_counter() - begun
        most = engine.model.context_length
        if max(prompt, context + DECODED) > most:
            raise click.UsageError(
                f"{what} has a context of {most:,} tokens; give a smaller --prompt, and a --context of at most "
                f"{max(0, most - DECODED):,}."
            )
        engine.bank.preload()
        load_s = time.perf_counter() - begun
        subject = Subject(engine)
        subject.warm(min(prompt, 64))
        short = Figure.of(DECODED, [subject.decode(16) for _ in range(runs)])
        result: dict[str, Any] = {
            "model": what,
            "weights": weights,
            "threads": used,
            "load_s": load_s,
            "dense_load_s": dense_s,
            "resident_bytes": engine.model.resident_bytes + engine.bank.capacity_bytes,
            "prefill_tokens": prompt,
            "prefill": asdict(Figure.of(prompt, [subject.prefill(prompt) for _ in range(runs)])),
            "decode": asdict(short),
            "weights_gb_s": active_bytes(engine) * short.median / 1e9,
        }
        if context:
            result["decode_context"] = context
            result["decode_at_context"] = asdict(
                Figure.of(DECODED, [subject.decode(context) for _ in range(runs)])
            )
        if together:
            result["sequences"] = together
            result["decode_together"] = asdict(
                Figure.of(DECODED * together, [subject.decode_together(together, 16) for _ in range(runs)])
            )
        stats = engine.bank.stats
        if engine.bank.streams:
            result["experts"] = asdict(stats)
        result["peak_bytes"] = peak_bytes()
        result["read_gb_s"] = read_speed().gbytes_per_s
        tile = matmul_speed(kernel_kind(engine), 2048, 2048, 128)
        result["gmac_s"] = active_macs(engine) * result["prefill"]["median"] / 1e9
        result["tile_gmac_s"] = tile.gmacs_per_s
    if as_json:
        emit_json(result)
        return

    def speed(name: str) -> str:
        figure = result[name]
        return f"{figure['median']:.1f} tokens/s ({figure['low']:.1f} … {figure['high']:.1f})"

    rows = [
        ("load", f"{load_s:.1f} s (dense weights {dense_s:.1f} s)"),
        (f"prefill of {prompt}", speed("prefill")),
        ("decode", speed("decode")),
        (
            "weights read",
            f"{result['weights_gb_s']:.1f} GB/s; a plain read reaches {result['read_gb_s']:.1f}",
        ),
        (
            "multiplications",
            f"{result['gmac_s']:.0f} G/s in the prefill; one matrix on many rows reaches {result['tile_gmac_s']:.0f}",
        ),
        (
            "memory",
            f"{format_bytes(result['resident_bytes'])} resident, {format_bytes(result['peak_bytes'])} at the most",
        ),
    ]
    if context:
        rows.insert(3, (f"decode after {context}", speed("decode_at_context")))
    if together:
        rows.insert(3, (f"decode of {together} together", speed("decode_together")))
    print(table((what, f"{weights}, {used} threads"), rows))
