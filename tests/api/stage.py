"""Servers for the tests of the API: a real process with reference models, and one in this process whose model says
what a script tells it to."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import trio

from engine.arrays import F32
from engine.cache import KeyValue, State
from engine.engine import Engine, Options
from engine.experts import Experts
from engine.models import Batch, Model
from engine.source import DirectorySource
from engine.template import ChatTemplate
from swarm.api.server import Settings, listen, serving
from swarm.api.shelf import Listed, Need
from tests.e2e.processes import running

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments.city }}"
    "{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


@contextmanager
def api_process(home: Path, *arguments: str | Path) -> Iterator[str]:
    """`swarm api` on a free port of loopback; gives its URL."""
    with running(home, "api", *arguments, "--port", "0", "--json") as process:
        yield process.event("answering")["url"]


class ScriptedModel(Model):
    """Answers a user's last words with what `answer` makes of them, a token a step; `pace_s` a step."""

    context_length = 4096
    resident_bytes = 1000

    def __init__(self, engine: Engine, answer: Callable[[str], str], pace_s: float = 0.0) -> None:
        self.vocab_size = engine.model.vocab_size
        self.pace_s = pace_s
        self.rows: list[int] = []
        """Tokens of each step."""
        self.gate: threading.Event | None = None
        """What a step waits for when it has noted its tokens."""
        self._tokenizer = engine.tokenizer
        self._answer = answer
        self._end = min(engine.stop_ids)
        self._start = engine.tokenizer.id_of("<|im_start|>") or 0

    def new_state(self) -> State:
        return State([KeyValue([(1,)], np.int32)])

    def run(self, batch: Batch, experts: Experts) -> F32:
        time.sleep(self.pace_s)
        self.rows.append(len(batch))
        if self.gate is not None:
            self.gate.wait(60)
        logits = np.zeros((len(batch.wanted), self.vocab_size), np.float32)
        row = 0
        for segment, part in zip(batch.segments, batch.parts(0), strict=True):
            part.write(segment.state.length, np.asarray(segment.tokens, np.int32)[:, None])
            if segment.logits == "last":
                length = segment.state.length + len(segment.tokens)
                logits[row, self._next(part.arrays[0][:length, 0].tolist())] = 50.0
                row += 1
        return logits

    def _next(self, ids: list[int]) -> int:
        if self._start not in ids:  # a text that is no conversation has nothing to follow
            return self._end
        turn = len(ids) - 1 - ids[::-1].index(self._start)
        head = len(self._tokenizer.encode("assistant\n"))
        asked = self._tokenizer.decode(ids[:turn]).rstrip().rpartition("user\n")[2]
        script = self._tokenizer.encode(self._answer(asked))
        said = len(ids) - turn - 1 - head
        return script[said] if said < len(script) else self._end


def scripted(folder: Path, answer: Callable[[str], str], pace_s: float = 0.0) -> Engine:
    """An engine with a reference model's tokenizer, a template that takes tools, and a scripted model."""
    engine = Engine.open(DirectorySource(folder), Options())
    engine.model = ScriptedModel(engine, answer, pace_s)
    engine._template = ChatTemplate(TEMPLATE, engine.tokenizer)
    engine.generation = {}
    return engine


@dataclass
class Scripts:
    """A library of scripted models of equal size; counts what is opened."""

    folder: Path
    answers: Mapping[str, Callable[[str], str]]
    pace_s: float = 0.0
    view: Mapping[str, Any] | None = None
    resident_bytes: int = 1000

    def __post_init__(self) -> None:
        self.opened: list[str] = []
        self.engines: dict[str, Engine] = {}

    def models(self) -> tuple[Listed, ...]:
        return tuple(Listed(name, 1000) for name in self.answers)

    def need(self, name: str) -> Need:
        return Need(1000, 0)

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        self.opened.append(name)
        engine = self.engines[name] = scripted(self.folder, self.answers[name], self.pace_s)
        engine.model.resident_bytes = self.resident_bytes
        return engine

    def swarm(self) -> Mapping[str, Any]:
        return self.view or {"link": "local", "peers": [], "experts": []}


@contextmanager
def in_process(library: Scripts, settings: Settings | None = None) -> Iterator[str]:
    """A server in a thread of this process; gives its URL."""
    settings = replace(settings or Settings(), port=0)
    listener = listen(settings.host, 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ends: list[Callable[[], None]] = []
    ready = threading.Event()

    async def main() -> None:
        over, token = trio.Event(), trio.lowlevel.current_trio_token()
        ends.append(lambda: token.run_sync_soon(over.set))
        async with serving(library, settings, listener) as run:
            ready.set()
            await run(over.wait)

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(60)
    try:
        yield url
    finally:
        ends[0]()
        thread.join()


def ask(url: str, body: Any, path: str = "/v1/chat/completions", **more: Any) -> httpx2.Response:
    """One request."""
    return httpx2.post(url + path, json=body, timeout=60, **more)


def says(text: str, **more: Any) -> dict[str, Any]:
    """The body of a chat completion with one user message."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Waits for something that must come about."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < within_s
        time.sleep(0.01)


def idle(url: str) -> bool:
    """Whether no slot is taken and nobody waits."""
    health = httpx2.get(url + "/health", timeout=20).json()
    return bool(health["running"] == 0 and health["waiting"] == 0)
