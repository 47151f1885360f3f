"""How fast a server is: streams of a made-up model over HTTP on loopback, some together and one alone."""

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import trio

from engine.engine import Engine, Options
from engine.synthetic import SyntheticSource, preset
from swarm.api.load import Streamed, streams
from swarm.api.server import Settings, listen, serving
from swarm.api.shelf import Listed, Need


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
    """Medians over runs. Tokens/s of a run: all its tokens, from its first request to its last token. Decoding: the
    sum of what each stream made a second after its first token."""

    streams: int
    runs: int
    alone_tokens_per_s: float
    together_tokens_per_s: float
    alone_decode_tokens_per_s: float
    together_decode_tokens_per_s: float
    alone_first_s: float
    together_first_s: float
    together_first_p99_s: float
    between_p99_s: float
    """Between two tokens of a stream among others."""

    @property
    def gain(self) -> float:
        """How many times one stream's tokens/s all make together, prompts and all."""
        return self.together_tokens_per_s / self.alone_tokens_per_s

    @property
    def decode_gain(self) -> float:
        """The same once a stream decodes."""
        return self.together_decode_tokens_per_s / self.alone_decode_tokens_per_s


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
        room = course.prompt + course.tokens
        self.config["max_position_embeddings"] = max(room, self.config["max_position_embeddings"])
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
def _served(library: _MadeUp, slots: int) -> Iterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0)
    address: tuple[str, int] = listener.getsockname()
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
        yield address
    finally:
        ends[0]()
        thread.join()


def measure(course: Course) -> Outcome:
    """Runs a course: one stream and many in turn, after a round that is not measured. The clients are a process of
    their own, as clients are."""
    library = _MadeUp(course)
    luck = np.random.default_rng(5)
    vocabulary, end = library.config["vocab_size"], library.config["eos_token_id"]

    def body() -> bytes:
        ids = luck.integers(0, vocabulary, course.prompt).tolist()
        common = {"prompt": ids, "temperature": 0, "max_tokens": course.tokens}
        return json.dumps({**common, "stream": True, "logit_bias": {str(end): -100}}).encode()

    alone: list[list[Streamed]] = []
    together: list[list[Streamed]] = []
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as clients,
        _served(library, course.streams) as address,
    ):
        for number in range(course.runs + 1):
            one = clients.submit(streams, address, [body()]).result()
            many = clients.submit(streams, address, [body() for _ in range(course.streams)]).result()
            if number:
                alone.append(one)
                together.append(many)
    firsts = [stream.first_s for run in together for stream in run]
    gaps = [gap for run in together for stream in run for gap in np.diff(stream.tokens_s).tolist()]
    return Outcome(
        course.streams,
        course.runs,
        float(np.median([_rate(run) for run in alone])),
        float(np.median([_rate(run) for run in together])),
        float(np.median([_decode_rate(run) for run in alone])),
        float(np.median([_decode_rate(run) for run in together])),
        float(np.median([stream.first_s for run in alone for stream in run])),
        float(np.median(firsts)),
        float(np.percentile(firsts, 99)),
        float(np.percentile(gaps, 99)),
    )


def _rate(run: list[Streamed]) -> float:
    """Tokens a second of all streams, from the first request to the last token."""
    taken_s = max(stream.tokens_s[-1] for stream in run) - min(stream.began_s for stream in run)
    return sum(len(stream.tokens_s) for stream in run) / taken_s


def _decode_rate(run: list[Streamed]) -> float:
    """Tokens a second of each stream after its first, summed."""
    return sum((len(stream.tokens_s) - 1) / (stream.tokens_s[-1] - stream.tokens_s[0]) for stream in run)
