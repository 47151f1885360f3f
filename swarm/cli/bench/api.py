"""`swarm bench api`: streams together beside one alone, over HTTP on loopback."""

import click

from swarm.cli.bench.shape import shape_options
from swarm.cli.options import threads_option, weights_options


@click.command("api", short_help="Streams together beside one alone, over HTTP.")
@shape_options
@weights_options
@threads_option
@click.option("--streams", type=click.IntRange(2, 64), default=8, show_default=True, help="Streams at once.")
@click.option("--prompt", type=click.IntRange(1), default=32, show_default=True, help="Tokens of a prompt.")
@click.option("--tokens", type=click.IntRange(2), default=32, show_default=True, help="Tokens of a reply.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Measured runs of each kind."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    shape: str,
    experts: int | None,
    layers: int | None,
    weights: str,
    expert_ram: int | None,
    streams: int,
    prompt: int,
    tokens: int,
    runs: int,
    as_json: bool,
) -> None:
    """Measure tokens/s of several streams together and of one alone, taking turns, and the time to first token.

    A made-up model is served on loopback by this process and asked over HTTP.
    """
    from dataclasses import asdict

    from swarm.api.bench import Course, measure
    from swarm.cli.output import emit_json, say, table

    say(f"Loading {shape}, made-up weights …")
    result = measure(Course(shape, experts, layers, weights, expert_ram, streams, prompt, tokens, runs))
    if as_json:
        emit_json(
            {
                "model": shape,
                "weights": weights,
                **asdict(result),
                "gain": result.gain,
                "decode_gain": result.decode_gain,
            }
        )
        return
    rows = [
        ("one stream", f"{result.alone_tokens_per_s:.1f} tokens/s"),
        (f"{streams} together", f"{result.together_tokens_per_s:.1f} tokens/s, {result.gain:.2f} × one"),
        ("one, decoding", f"{result.alone_decode_tokens_per_s:.1f} tokens/s"),
        (
            f"{streams}, decoding",
            f"{result.together_decode_tokens_per_s:.1f} tokens/s, {result.decode_gain:.2f} × one",
        ),
        ("first token, one", f"{1000 * result.alone_first_s:.0f} ms"),
        (
            f"first token, {streams}",
            f"{1000 * result.together_first_s:.0f} ms, p99 {1000 * result.together_first_p99_s:.0f} ms",
        ),
        ("between tokens", f"p99 {1000 * result.between_p99_s:.0f} ms"),
    ]
    print(table((shape, weights), rows))
