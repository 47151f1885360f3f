"""`swarm bench kernels`: single kernels in every format."""

import click


@click.command("kernels", short_help="Single kernels: bytes and multiplications a second.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads; by default one a physical core.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(threads: int | None, as_json: bool) -> None:
    """Measure the packing of each stored format, and each format with one row from memory and with many rows. One row
    takes turns with a plain read of as many bytes, and is shown as a share of its speed too."""
    from engine.bench import kernel_speeds
    from engine.kernels import set_threads
    from swarm.cli.output import emit_json, table

    used = set_threads(threads)
    speeds = kernel_speeds()
    if as_json:
        emit_json({
            "threads": used,
            "kernels": [
                {
                    "name": speed.name,
                    "median_s": speed.timing.median_s,
                    "gb_s": speed.gbytes_per_s,
                    "gmac_s": speed.gmacs_per_s,
                    "beside_read": speed.beside_read,
                }
                for speed in speeds
            ],
        })  # fmt: skip
        return
    rows = [
        (
            speed.name,
            f"{speed.gbytes_per_s:.1f}",
            "" if speed.beside_read is None else f"{speed.beside_read:.2f}",
            f"{speed.gmacs_per_s:.0f}" if speed.macs else "",
        )
        for speed in speeds
    ]
    print(table((f"kernel ({used} threads)", "GB/s", "of a plain read", "GMAC/s"), rows))
