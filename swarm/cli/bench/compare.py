"""`swarm bench compare`: the engine against llama.cpp on the same shape, taking turns."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from swarm.cli.bench.shape import made_up, run_options, shape_options

if TYPE_CHECKING:
    from engine.numerics import Weights


@click.command("compare", short_help="The engine against llama.cpp on the same shape.")
@shape_options
@click.option(
    "--weights", type=click.Choice(["q8", "q4"]), default="q8", show_default=True, help="q8: Q8_0; q4: Q4_0."
)
@run_options
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Decode after so many tokens, too.",
)
def command(
    shape: str,
    experts: int | None,
    layers: int | None,
    weights: str,
    threads: int | None,
    prompt: int,
    runs: int,
    as_json: bool,
    context: int,
) -> None:
    """Measure prefill and decode of the engine and of llama.cpp on the same shape with the same threads.

    Both hold the model in memory; their runs alternate, so that a machine whose speed changes slows both.
    Needs swarm-moe[compare] (llama-cpp-python and gguf).
    """
    from engine.engine import Engine, Options
    from engine.kernels import set_threads
    from engine.rival import write_gguf
    from engine.speed import DECODED, Subject
    from engine.synthetic import SyntheticSource
    from swarm.cli.output import emit_json, say, table

    used = set_threads(threads)
    config = made_up(shape, experts, layers, max(prompt, context) + 2 * DECODED)
    with tempfile.TemporaryDirectory(prefix="swarm-compare-") as folder:
        path = Path(folder) / "model.gguf"
        say("Writing a GGUF file of the same shape …")
        write_gguf(config, weights, path)
        with (
            subprocess.Popen(
                [sys.executable, "-m", "engine.rival", str(path), str(used), str(max(prompt, context) + 4 * DECODED)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            ) as rival,
            Engine.open(SyntheticSource(config), Options(cast("Weights", weights))) as engine,
        ):  # fmt: skip
            engine.bank.preload()
            ours = Subject(engine)
            if _answer(rival) != "ready":
                raise click.ClickException("llama.cpp did not start; install swarm-moe[compare]")
            kinds: dict[str, tuple[int, Callable[..., float], str, list[int]]] = {
                f"prefill of {prompt}": (prompt, ours.prefill, "prefill", [prompt]),
                "decode": (DECODED, ours.decode, "decode", [16, DECODED]),
                f"decode after {context}": (DECODED, ours.decode, "decode", [context, DECODED]),
            }
            ours.warm(64)
            results: dict[str, Any] = {}
            for name, (tokens, run_ours, what, numbers) in kinds.items():
                say(f"Measuring {name} …")
                pairs = []
                for run in range(runs + 1):
                    mine = run_ours(*numbers)
                    theirs = float(_ask(rival, what, *numbers))
                    if run:  # the first of each is a warm-up
                        pairs.append((tokens / mine, tokens / theirs))
                results[name] = _summary(pairs)
            assert rival.stdin is not None
            rival.stdin.close()
    if as_json:
        emit_json(
            {"shape": shape, "experts": config["num_experts"], "weights": weights, "threads": used, **results}
        )
        return
    rows = [
        (name, f"{found['ours']:.1f}", f"{found['theirs']:.1f}", f"{found['ratio']:.2f}",
         f"{found['ratio_low']:.2f} … {found['ratio_high']:.2f}")
        for name, found in results.items()
    ]  # fmt: skip
    print(table((f"{shape}, {weights}", "swarm tokens/s", "llama.cpp tokens/s", "ratio", "quartiles"), rows))


def _ask(rival: "subprocess.Popen[str]", what: str, *numbers: int) -> str:
    assert rival.stdin is not None
    rival.stdin.write(" ".join([what, *map(str, numbers)]) + "\n")
    rival.stdin.flush()
    return _answer(rival)


def _answer(rival: "subprocess.Popen[str]") -> str:
    assert rival.stdout is not None
    return rival.stdout.readline().strip()


def _summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Medians of both, and median and quartiles of their ratio run by run."""
    import numpy as np

    ratios = np.percentile([mine / theirs for mine, theirs in pairs], [25, 50, 75])
    ours, theirs = np.median(np.array(pairs), 0)
    return {
        "ours": float(ours),
        "theirs": float(theirs),
        "ratio": float(ratios[1]),
        "ratio_low": float(ratios[0]),
        "ratio_high": float(ratios[2]),
    }
