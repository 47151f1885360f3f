"""`swarm bench swarm`: experts on peers, on this machine: speed, bytes, and what donors do that fail, lie or leave."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from swarm.cli.bench.shape import made_up
from swarm.cli.bench.swarm_rows import ROWS

if TYPE_CHECKING:
    from engine.engine import Engine

PARTS = ("empty", "overhead", "delay", "hedge", "drafts", "bytes", "frozen", "lies", "churn")


@dataclass(frozen=True)
class Size:
    """How much is measured, and of which model."""

    shape: str
    experts: int
    layers: int | None
    tokens: int
    prompt: int
    runs: int
    rounds: int
    seeds: int
    calls: int
    peers: int

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return made_up(self.shape, self.experts, self.layers, 1024)


@click.command("swarm", short_help="Experts on peers: speed, bytes, and donors that fail, lie or leave.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these; by default all.")
@click.option("--shape", default="olmoe-1b-7b", show_default=True, help="The shape of the model.")
@click.option("--experts", type=click.IntRange(min=8), default=16, show_default=True, help="Experts a layer.")
@click.option("--layers", type=click.IntRange(min=1), help="Layers; by default those of the shape.")
@click.option("--tokens", type=click.IntRange(min=2), default=24, show_default=True, help="Decoded a run.")
@click.option(
    "--prompt",
    type=click.IntRange(1, 512),
    default=256,
    show_default=True,
    help="bytes: tokens of the prefill.",
)
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--rounds", type=click.IntRange(min=200), default=2000, show_default=True, help="Layers asked.")
@click.option(
    "--seeds", type=click.IntRange(min=2), default=200, show_default=True, help="lies: liars of each kind."
)
@click.option(
    "--calls",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="lies: calls of honest donors.",
)
@click.option(
    "--peers",
    type=click.IntRange(min=40),
    default=10_000,
    show_default=True,
    help="churn: peers of the tracker.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(parts: tuple[str, ...], as_json: bool, **size: Any) -> None:
    """Measure experts on peers, all on this machine, with made-up weights of a real shape.

    empty: a layer's round with experts that compute nothing, encrypted, one donor process. overhead: decoding
    with all experts in one donor process, beside local decoding, in turns. delay: behind a proxy that adds a
    round trip, beside 1 / (layers × round trip + local compute). hedge: two donors that delay 5 % of calls by
    250 ms each. drafts: replies that repeat their prompt and others, behind the proxy, with tokens guessed and
    without. bytes: what a token takes on the connection to a donor, beside its rows and outputs alone, and
    whether TCP_NODELAY is set at both ends. frozen: a reply one of whose two donors is stopped (SIGSTOP), and
    what was asked of it until it went on (SIGCONT).

    Two parts are simulated. lies: calls until audits find one liar of four donors, or all four lying alike,
    beside what the share of audits implies; and honest donors, who must not be banned. churn: 100 donors that
    join and leave for ten minutes: experts without a donor, assignments moved; and how quickly a tracker with
    many registered peers answers.
    """
    from swarm.cli.output import emit_json, say, table

    wanted = parts or PARTS
    measured = Size(**size)
    found: dict[str, Any] = {"shape": measured.shape, "experts": measured.experts, "layers": measured.layers}
    for part in wanted:
        say(f"Measuring {part} …")
        found[part] = MEASURED[part](measured)
    if as_json:
        emit_json(found)
        return
    rows = [(part, *row) for part in wanted for row in ROWS[part](found[part])]
    print(table(("", "figure", "value"), rows))


def _empty(size: Size) -> Any:
    from swarm.peers import bench

    return asdict(bench.empty_round(size.config, size.rounds))


def _hedge(size: Size) -> Any:
    from swarm.peers import bench

    return {
        name: asdict(times) for name, times in bench.hedging(size.config, size.rounds, 0.05, 0.25).items()
    }


def _with_engine(measure: "Callable[[Size, Engine, Any], Any]") -> Callable[[Size], Any]:
    """A part that needs the model's other weights; `measure` is given the engine and the configuration."""

    def measured(size: Size) -> Any:
        from engine.engine import Engine, Options
        from engine.kernels import expect_pauses
        from engine.synthetic import SyntheticSource

        config = size.config
        expect_pauses()  # as whoever joins a swarm does
        with Engine.open(SyntheticSource(config), Options("q8")) as engine:
            return measure(size, engine, config)

    return measured


def _overhead(size: Size, engine: "Engine", config: Any) -> Any:
    from swarm.peers import bench

    speeds = bench.overhead(engine, config, size.tokens, size.runs)
    return asdict(speeds) | {"ratio": speeds.ratio}


def _delay(size: Size, engine: "Engine", config: Any) -> Any:
    from swarm.peers import bench

    return bench.delayed(engine, config, [0.005, 0.01, 0.02, 0.03], size.tokens)


def _drafts(size: Size, engine: "Engine", config: Any) -> Any:
    from swarm.peers.drafts_bench import drafting

    return [asdict(one) for one in drafting(engine, config, [0.0, 0.02], 2 * size.tokens)]


def _bytes(size: Size, engine: "Engine", config: Any) -> Any:
    from swarm.peers.traffic_bench import traffic

    found = traffic(engine, config, size.tokens, size.prompt)
    told: dict[str, Any] = {"no_delay": found.no_delay}
    for name, course in (("decode", found.decode), ("prefill", found.prefill)):
        told[name] = {"tokens": course.tokens}
        for direction, a_token in (("sent", course.sent), ("received", course.received)):
            told[name][f"{direction}_bytes_a_token"] = round(a_token.measured, 1)
            told[name][f"{direction}_implied"] = a_token.implied
            told[name][f"{direction}_ratio"] = round(a_token.ratio, 4)
    return told


def _frozen(size: Size, engine: "Engine", config: Any) -> Any:
    from swarm.peers.frozen_bench import freezing

    return [asdict(one) for one in freezing(engine, config, size.tokens)]


def _lies(size: Size) -> Any:
    import trio

    from swarm.peers.lies_bench import Found, measure
    from swarm.peers.remote import Rules

    def told(one: Found) -> dict[str, Any]:
        return asdict(one) | {"within": one.within}

    found = trio.run(measure, Rules().audit, size.seeds, size.calls)
    return asdict(found) | {
        "one": [{"rate": rate, **told(one)} for rate, one in found.one.items()],
        "all_first": told(found.all_first),
        "all_but_one": told(found.all_but_one),
    }


def _churn(size: Size) -> Any:
    import trio

    from tracker.bench import measure
    from tracker.churn_bench import churn

    found = trio.run(churn)
    answered = trio.run(measure, size.peers, TRACKER_QUESTIONS)
    slowest = max(answered.figures, key=lambda figure: figure.p99_ms)
    return asdict(found) | {
        "moved_share": found.moved_share,
        "peers": size.peers,
        "slowest_answer": slowest.question,
        "slowest_p99_ms": slowest.p99_ms,
        "answers": [asdict(figure) for figure in answered.figures],
    }


TRACKER_QUESTIONS = 500
"""Of each kind."""
MEASURED: dict[str, Callable[[Size], Any]] = {
    "empty": _empty,
    "overhead": _with_engine(_overhead),
    "delay": _with_engine(_delay),
    "hedge": _hedge,
    "drafts": _with_engine(_drafts),
    "bytes": _with_engine(_bytes),
    "frozen": _with_engine(_frozen),
    "lies": _lies,
    "churn": _churn,
}
