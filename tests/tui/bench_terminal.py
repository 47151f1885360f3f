"""Measures the terminal: run as a program, prints one JSON object.

    python tests/tui/bench_terminal.py [TOKENS] [TOKENS_PER_SECOND]

The application runs in a pseudo terminal over a fake backend that streams Markdown at a steady pace, while
keys are typed. Reported: time from start to first paint and to the first model, the share of one core that
the whole process used while the reply streamed, the longest step of the loop (rendering, layout, drawing),
and how long a typed letter takes to appear.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.tui.terminal import Screen, screen_of  # noqa: E402 - the path comes first

PARAGRAPH = (
    "## Part {at}\n\nThe router scores **all experts** and keeps the best `k` of them, which is what makes a "
    "large model cheap to run: most of its weights rest for most tokens.\n\n1. scores\n2. softmax\n3. the "
    "largest\n\n"
    "```python\ndef route(logits, k):\n    order = sorted(range(len(logits)), key=lambda i: -logits[i])\n"
    "    return order[:k]\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
)


def child(home: str, tokens: int, pace: float, figures: str) -> None:
    """The application itself, in the pseudo terminal."""
    import asyncio
    import asyncio.events

    from tests.tui.fakes import STATS, FakeBackend
    from tui.app import run
    from tui.messages import EndReason, Finished, Text
    from tui.options import Options

    longest = 0.0
    worst = [""]
    busy: list[float] = []
    real = asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        nonlocal longest
        began = time.perf_counter()
        real(handle)
        cost = time.perf_counter() - began
        if streaming.is_set():
            if cost > longest:
                longest, worst[:] = cost, [repr(handle)]
            busy.append(cost)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    streaming = threading.Event()
    text = "".join(PARAGRAPH.format(at=at) for at in range(tokens * 4 // len(PARAGRAPH) + 1))
    pieces = [text[at : at + 4] for at in range(0, tokens * 4, 4)]

    class Paced(FakeBackend):
        def ask(self, request):  # type: ignore[no-untyped-def]
            streaming.set()
            began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
            for at, piece in enumerate(pieces):
                ahead = began + at / pace - time.monotonic()
                if ahead > 0.002:
                    time.sleep(ahead)
                yield Text(piece)
            used = resource.getrusage(resource.RUSAGE_SELF)
            elapsed = time.monotonic() - began
            spent = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
            streaming.clear()
            Path(figures).write_text(
                json.dumps({"elapsed_s": elapsed, "cpu_s": spent, "longest_step_ms": longest * 1e3,
                            "worst": worst[0], "steps_over_20_ms": sum(cost > 0.02 for cost in busy)})
            )  # fmt: skip
            yield Finished(EndReason.END, STATS)

    sys.exit(run(Options(home=Path(home), target="x", model="olmoe-1b-7b"), Paced))


def main(tokens: int, pace: float) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory() as home:
        figures = Path(home) / "figures.json"
        command = [sys.executable, __file__, "child", home, str(tokens), str(pace), str(figures)]
        began = time.monotonic()
        with screen_of(command, Path(home)) as shown:
            shown.see("sk anything")  # its first letter is under the cursor
            painted = time.monotonic() - began
            shown.see("answers, with a context of")
            modelled = time.monotonic() - began
            shown.write("go\r")
            shown.see("Part 1")
            delays = typed(shown, figures)
            shown.wait(lambda _: figures.exists(), "the end of the reply", 2 * tokens / pace + 60)
            shown.write("\x11")
            shown.end()
        measured: dict[str, float] = json.loads(figures.read_text())
    measured["share_of_a_core"] = measured.pop("cpu_s") / measured["elapsed_s"]
    measured["first_paint_s"], measured["first_model_s"] = painted, modelled
    measured["key_median_ms"] = statistics.median(delays) * 1e3
    measured["key_worst_ms"] = max(delays) * 1e3
    measured["keys"] = len(delays)
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in measured.items()}


def typed(shown: Screen, figures: Path) -> list[float]:
    """Seconds from a key to its letter on the screen, over the length of the reply."""
    delays = []
    letters = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ"
    for letter in letters * 3:
        if figures.exists():
            break
        shown.output = b""
        began = time.monotonic()
        shown.write(letter)
        shown.see(letter)
        delays.append(time.monotonic() - began)
        until = time.monotonic() + 0.1
        shown.wait(lambda _, until=until: time.monotonic() > until, "a moment")  # type: ignore[misc]
    return delays


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    else:
        os.environ.setdefault("TERM", "xterm-256color")
        arguments = [*sys.argv[1:], *("8000", "400")[len(sys.argv) - 1 :]]
        print(json.dumps(main(int(arguments[0]), float(arguments[1])), indent=2))
