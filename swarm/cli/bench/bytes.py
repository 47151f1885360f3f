"""`swarm bench bytes`: a model's bytes cold, warm, through FUSE and in a crowd, each beside its reference."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swarm.cli.options import DIRECTORY, SIZE

if TYPE_CHECKING:
    from swarm.peers.crowd_bench import Crowded

PARTS = ("cold", "warm", "fuse", "crowd")


@click.command("bytes", short_help="A model's bytes: cold, warm, through FUSE, in a crowd.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; by default all.")
@click.option("--size", type=SIZE, default="1GiB", show_default=True, help="The size of the file.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Turns of each.")
@click.option(
    "--connections",
    type=click.IntRange(min=4),
    default=2000,
    show_default=True,
    help="How many the crowd has.",
)
@click.option("--folder", type=DIRECTORY, help="Where to measure; by default where temporary files go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    parts: tuple[str, ...], size: int, rounds: int, connections: int, folder: Path | None, as_json: bool
) -> None:
    """Measure how fast a model's bytes come, with server and client on this machine.

    cold: from a maintainer over an encrypted loopback connection, checked and stored, beside a plain TCP copy.
    warm: from the store through the mirror, beside pread of a plain file. fuse: a mount's first read of what
    is in the store, and reading it again beside the same file in the page cache, as it is and in pages of
    4 KiB, which is how Linux keeps what comes through FUSE. crowd: the most memory a maintainer of 64 busy
    clients takes; and how long one client's reads of 1 MiB take while others have connections that are idle,
    stall in the handshake or hardly take their bytes, beside the same reads alone. On disk it needs twice the
    size, and once more for fuse and for every round of cold.
    """
    import dataclasses
    import statistics
    import tempfile

    from swarm.cli.output import emit_json, say, table
    from swarm.peers.byte_bench import measure
    from swarm.peers.crowd_bench import Size

    with tempfile.TemporaryDirectory(prefix="swarm-bench-", dir=folder) as made:
        found = measure(
            Path(made),
            size,
            rounds,
            parts or PARTS,
            lambda part: say(f"Measuring {part} …"),
            Size(connections),
        )
    compared = {
        "cold": (found.cold, "TCP copy"),
        "warm": (found.warm, "pread"),
        "fuse again": (found.again, "page cache"),
        "fuse again small": (found.again_small, "page cache, 4 KiB"),
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
        if found.crowd is not None:
            told["crowd"] = {**dataclasses.asdict(found.crowd), "p99_ratio": found.crowd.ratio}
        emit_json(told)
        return
    rows: list[tuple[str, ...]] = []
    if found.first:
        rows.append(("fuse first", _speed(statistics.median(found.first)), "", "", ""))
    for name, (beside, reference) in compared.items():
        if beside is not None:
            ratios = beside.ratios
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            of = f"{reference} {_speed(beside.reference)}"
            rows.append((name, _speed(beside.speed), of, f"{statistics.median(ratios):.3f}", spread))
    if found.crowd is not None:
        rows += _crowd_rows(found.crowd)
    print(table(("", "median", "beside", "ratio", "least to most"), rows))


def _speed(speed: float) -> str:
    return f"{speed / 1e6:.0f} MB/s"


def _crowd_rows(crowd: "Crowded") -> list[tuple[str, ...]]:
    import statistics

    rows: list[tuple[str, ...]] = []
    for name in ("p50", "p99", "worst"):
        alone = [1000 * getattr(turn.alone, f"{name}_s") for turn in crowd.turns]
        crowded = [1000 * getattr(turn.crowded, f"{name}_s") for turn in crowd.turns]
        ratios = [own / other for own, other in zip(crowded, alone, strict=True)]
        of = f"alone {statistics.median(alone):.1f} ms"
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        median = f"{statistics.median(ratios):.2f}"
        rows.append((f"crowd {name}", f"{statistics.median(crowded):.1f} ms", of, median, spread))
    for kind in crowd.turns[0].held:
        held = [turn.held[kind] for turn in crowd.turns]
        rows.append(
            (f"crowd {kind}", f"{statistics.median(held):.0f} held", "", "", f"{min(held)} to {max(held)}")
        )
    anew = [turn.opened_anew for turn in crowd.turns]
    rows.append(
        ("crowd anew", f"{statistics.median(anew):.0f} opened", "", "", f"{min(anew)} to {max(anew)}")
    )
    peaks = {
        f"{crowd.size.clients} clients": crowd.clients_peak_bytes,
        "then the crowd": crowd.crowd_peak_bytes,
    }
    for name, peak in peaks.items():
        if peak is not None:
            rows.append((name, f"{peak / (1 << 20):.0f} MiB", "", "", "the most"))
    return rows
