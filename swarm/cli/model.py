"""An engine for a command: of a directory on this machine, or of a model of a swarm."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.engine import Engine, Options
from engine.source import DirectorySource
from swarm.cli.asking import Asking
from swarm.cli.joining import joined
from swarm.cli.output import byte_progress, say
from swarm.peers.settings import home


@contextmanager
def opened(
    target: str | None,
    token: str | None,
    local: Path | None,
    model: str | None,
    weights: str,
    expert_ram: int | None,
    *,
    offline: bool = False,
    asking: Asking | None = None,
) -> Iterator[Engine]:
    """The engine of `local`, or of a model of the swarm at `target`, for the length of a block.

    Raises:
        EngineError: the model cannot be run.
        SwarmError, OSError: it cannot be had.
    """
    options = Options(weights=weights, expert_ram_bytes=expert_ram, packed_cache=home().packed)  # type: ignore[arg-type]
    if local is not None:
        with DirectorySource(local) as source, Engine.open(source, options) as engine:
            yield engine
        return
    with joined(target, token, offline=offline) as (network, session):
        found = network.call(session.open_model, model)
        for notice in found.notices:
            say(notice)
        with byte_progress(f"Loading {found.info.name}") as show:
            engine = Engine.open(found.source, options, lambda done, total: show(done, total, ""))
        with engine:
            if asking is not None and not offline:
                with asking.experts(network, session, found, engine) as engine.experts:
                    yield engine
            else:
                yield engine
