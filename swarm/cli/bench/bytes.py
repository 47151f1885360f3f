"""`swarm bench bytes`: a model's bytes cold, warm and through FUSE, each beside its reference."""

from pathlib import Path
from typing import Any

import click

from swarm.cli.options import DIRECTORY, SIZE

PARTS = ("cold", "warm", "fuse")


@click.command("bytes", short_help="A model's bytes: cold, warm, through FUSE.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; by default all.")
@click.option("--size", type=SIZE, default="1GiB", show_default=True, help="The size of the file.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Turns of each.")
@click.option("--folder", type=DIRECTORY, help="Where to measure; by default where temporary files go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(parts: tuple[str, ...], size: int, rounds: int, folder: Path | None, as_json: bool) -> None:
    """Measure how fast a model's bytes come, with server and client on this machine.

    cold: from a maintainer over an encrypted loopback connection, checked and stored, beside a plain TCP copy.
    warm: from the store through the mirror, beside pread of a plain file. fuse: a mount's first read of what
    is in the store, and reading it again beside the same file in the page cache. On disk it needs twice the
    size, and once more for every round of cold.
    """
    import statistics
    import tempfile

    from swarm.cli.output import emit_json, say, table
    from swarm.peers.byte_bench import measure

    with tempfile.TemporaryDirectory(prefix="swarm-bench-", dir=folder) as made:
        found = measure(Path(made), size, rounds, parts or PARTS, lambda part: say(f"Measuring {part} …"))
    compared = {
        "cold": (found.cold, "TCP copy"),
        "warm": (found.warm, "pread"),
        "fuse again": (found.again, "page cache"),
    }
    if as_json:
        told: dict[str, Any] = {"size_bytes": found.size_bytes}
        if found.first:
            told["fuse_first"] = {"bytes_per_s": [round(speed) for speed in found.first]}
        for name, (beside, _) in compared.items():
            if beside is not None:
                told[name.replace(" ", "_")] = {
                    "bytes_per_s": [round(speed) for speed in beside.speeds],
                    "reference_bytes_per_s": [round(speed) for speed in beside.references],
                    "ratios": [round(ratio, 4) for ratio in beside.ratios],
                }
        emit_json(told)
        return
    rows = [("fuse first", _speed(statistics.median(found.first)), "", "", "")] if found.first else []
    for name, (beside, reference) in compared.items():
        if beside is not None:
            ratios = beside.ratios
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            of = f"{reference} {_speed(beside.reference)}"
            rows.append((name, _speed(beside.speed), of, f"{statistics.median(ratios):.3f}", spread))
    print(table(("", "median", "beside", "ratio", "least to most"), rows))


def _speed(speed: float) -> str:
    return f"{speed / 1e6:.0f} MB/s"
