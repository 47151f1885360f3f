"""How fast a server is: streams of a made-up model over HTTP on loopback, some together and one alone."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import numpy as np
import trio

from engine.engine import Engine, Options
from engine.synthetic import SyntheticSource, preset
from swarm.api.server import Settings, listen, serving
from swarm.api.shelf import Listed, Need

PATIENCE_S = 600.0


@dataclass(frozen=True)
class Course:
    """What is run."""

    shape: str
    experts: int | None
    layers: int | None
    weights: str
    expert_ram_bytes: int | None
    streams: int
    prompt: int
    tokens: int
    runs: int


@dataclass(frozen=True)
class Outcome:
    """Medians over runs; tokens/s from the first token of a run to its last, of all streams."""

    streams: int
    runs: int
    alone_tokens_per_s: float
    together_tokens_per_s: float
    alone_first_s: float
    together_first_s: float
    together_first_p99_s: float
    between_p99_s: float
    """Between two tokens of a stream among others."""

    @property
    def gain(self) -> float:
        """How many times one stream's tokens/s all make together."""
        return self.together_tokens_per_s / self.alone_tokens_per_s


class _WordySource(SyntheticSource):
    """A made-up model with a tokenizer: each token is a word."""

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        words = {f"w{ident}": ident for ident in range(int(str(config["vocab_size"])))}
        model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
        self._tokenizer = json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()

    def files(self) -> Mapping[str, int]:
        return {**super().files(), "tokenizer.json": len(self._tokenizer)}

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        if path == "tokenizer.json":
            return self._tokenizer[offset : offset + length]
        return super().read(path, offset, length)


class _MadeUp:
    """A library of one made-up model, all of it in memory."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self.config = preset(course.shape, course.experts, course.layers)
        self.engine: Engine | None = None

    def models(self) -> tuple[Listed, ...]:
        return (Listed(self._course.shape, 0),)

    def need(self, name: str) -> Need:
        return Need(0, 0)

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        course = self._course
        options = Options(course.weights, course.expert_ram_bytes)  # type: ignore[arg-type]
        self.engine = Engine.open(_WordySource(self.config), options)
        self.engine.bank.preload()
        return self.engine

    def swarm(self) -> Mapping[str, object]:
        return {}


@contextmanager
def _served(library: _MadeUp, slots: int) -> Iterator[str]:
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ends: list[Callable[[], None]] = []
    ready = threading.Event()

    async def main() -> None:
        over, token = trio.Event(), trio.lowlevel.current_trio_token()
        ends.append(lambda: token.run_sync_soon(over.set))
        async with serving(library, Settings(slots=slots, kept_bytes=0), listener) as run:
            ready.set()
            await run(over.wait)

    thread = threading.Thread(target=trio.run, args=(main,), name="server")
    thread.start()
    ready.wait()
    try:
        yield url
    finally:
        ends[0]()
        thread.join()


def _stream(client: httpx2.Client, body: Mapping[str, object]) -> tuple[float, list[float]]:
    """When a request was sent, and when each token came."""
    began, times = time.perf_counter(), []
    with client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                times.append(time.perf_counter())
    return began, times


def measure(course: Course) -> Outcome:
    """Runs a course: one stream and many in turn, after a round that is not measured."""
    library = _MadeUp(course)
    luck = np.random.default_rng(5)
    vocabulary, end = library.config["vocab_size"], library.config["eos_token_id"]

    def body() -> Mapping[str, object]:
        ids = luck.integers(0, vocabulary, course.prompt).tolist()
        common = {"prompt": ids, "temperature": 0, "max_tokens": course.tokens}
        return {**common, "stream": True, "logit_bias": {str(end): -100}}

    alone: list[list[tuple[float, list[float]]]] = []
    together: list[list[tuple[float, list[float]]]] = []
    with (
        _served(library, course.streams) as url,
        httpx2.Client(base_url=url, timeout=PATIENCE_S) as client,
        ThreadPoolExecutor(course.streams) as pool,
    ):
        for number in range(course.runs + 1):
            one = [_stream(client, body())]
            many = list(pool.map(lambda wish: _stream(client, wish), [body() for _ in range(course.streams)]))
            if number:
                alone.append(one)
                together.append(many)
    firsts = [times[0] - began for run in together for began, times in run]
    gaps = [gap for run in together for _, times in run for gap in np.diff(times).tolist()]
    return Outcome(
        course.streams,
        course.runs,
        float(np.median([_rate(run) for run in alone])),
        float(np.median([_rate(run) for run in together])),
        float(np.median([times[0] - began for run in alone for began, times in run])),
        float(np.median(firsts)),
        float(np.percentile(firsts, 99)),
        float(np.percentile(gaps, 99)),
    )


def _rate(run: list[tuple[float, list[float]]]) -> float:
    """Tokens a second of all streams, from the first token to the last; the first ones do not count."""
    counted = sum(len(times) - 1 for _, times in run)
    return counted / (max(times[-1] for _, times in run) - min(times[0] for _, times in run))
