"""What a benchmark of the engine runs on: a preset's shape with made-up weights, or a model directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def shape_options(command: Command) -> Command:
    """--shape, --experts, --layers: which made-up model."""
    for add in reversed(
        (
            click.option(
                "--shape",
                type=click.Choice(["olmoe-1b-7b", "qwen3-30b-a3b"]),
                default="olmoe-1b-7b",
                show_default=True,
                help="Shape of the model; its weights are made up in memory.",
            ),
            click.option(
                "--experts", type=click.IntRange(min=1), help="Experts a layer, to shrink the model."
            ),
            click.option("--layers", type=click.IntRange(min=1), help="Layers, to shrink the model."),
        )
    ):
        command = add(command)
    return command


def run_options(command: Command) -> Command:
    """--threads, --prompt, --runs, --json: how it is measured."""
    positive = click.IntRange(min=1)
    for add in reversed(
        (
            click.option("--threads", type=positive, help="Threads; by default one a physical core."),
            click.option(
                "--prompt", type=positive, default=512, show_default=True, help="Tokens of a prefill."
            ),
            click.option(
                "--runs", type=positive, default=5, show_default=True, help="Measured runs of each kind."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        )
    ):
        command = add(command)
    return command


def made_up(shape: str, experts: int | None, layers: int | None, context: int) -> dict[str, Any]:
    """The configuration of a preset that holds at least `context` positions."""
    from engine.synthetic import preset

    config = preset(shape, experts, layers)
    config["max_position_embeddings"] = max(context, config["max_position_embeddings"])
    return config


def source(directory: Path | None, config: dict[str, Any]) -> Any:
    """The bytes of the model: a directory's, or made up."""
    from engine.source import DirectorySource
    from engine.synthetic import SyntheticSource

    return SyntheticSource(config) if directory is None else DirectorySource(directory)
