"""Local decoding as a measure of comparison, in a process of its own.

Who asks donors expects a pause in each layer, and is tuned for that once, before its first kernel runs
(`engine.kernels.expect_pauses`). What donors are compared with is a process that is tuned for none.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.engine import Engine, Options
from engine.generate import greedy
from engine.synthetic import SyntheticSource
from swarm.peers.bench_process import helper, tell


@contextmanager
def local_decoding(config: Mapping[str, Any]) -> Iterator[Callable[[int], float]]:
    """Gives what measures local decoding of so many tokens whenever it is called, in tokens a second."""
    with helper(__name__, json.dumps(dict(config))) as process:
        yield lambda tokens: float(process.ask(str(tokens))["tokens_per_s"])


def decode_speed(engine: Engine, experts: Any, tokens: int) -> float:
    """Tokens a second of decoding after a short prompt."""
    greedy(engine.model, experts, [1, 2, 3, 4], 1)
    started = time.perf_counter()
    greedy(engine.model, experts, [1, 2, 3, 4], tokens + 1)
    whole = time.perf_counter() - started
    started = time.perf_counter()
    greedy(engine.model, experts, [1, 2, 3, 4], 1)
    return tokens / (whole - (time.perf_counter() - started))


def main(config: Mapping[str, Any]) -> None:
    """Measures whenever it is told a number of tokens, until its input ends."""
    with Engine.open(SyntheticSource(config), Options("q8")) as engine:
        engine.bank.preload()
        tell(ready=True)
        for line in sys.stdin:
            tell(tokens_per_s=decode_speed(engine, engine.experts, int(line)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
