"""`swarm bench`: what this machine reaches, measured. One file a benchmark, imported when it is asked for."""

import importlib

import click

BENCHMARKS = {
    "engine": "Load, prefill and decode of one model, beside what the machine can do.",
    "context": "What a token costs after many others, by family.",
    "kernels": "Single kernels: bytes and multiplications a second in every format.",
    "swarm": "Experts on peers: speed, bytes, and donors that fail, lie or leave.",
    "bytes": "A model's bytes: cold, warm, through FUSE, each beside its reference.",
    "api": "Streams together beside one alone, over HTTP.",
    "compare": "The engine against llama.cpp on the same shape, taking turns.",
}


class Benchmarks(click.Group):
    """The benchmarks of `BENCHMARKS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The benchmark of that name, or None for click to report."""
        if cmd_name not in BENCHMARKS:
            return None
        command = importlib.import_module(f"swarm.cli.bench.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list without importing any of them."""
        with formatter.section("Benchmarks"):
            formatter.write_dl(list(BENCHMARKS.items()))


@click.group("bench", cls=Benchmarks, short_help="Measure what this machine reaches.")
def command() -> None:
    """Measure what this machine reaches.

    Figures are medians of several runs with their spread; what is compared takes turns in one run. Leave the
    machine alone meanwhile.
    """
