"""Probabilities of a given text: read in pieces as in one, and read anew when what they rest on turns out wrong."""

from collections.abc import Iterator

import pytest

from engine.doubts import MOST_REDOS
from engine.engine import Engine, Options
from engine.errors import FalsifiedTooOften
from engine.generate import logits
from engine.sampling import log_probabilities, top_tokens
from engine.scores import Score, Scores
from engine.source import DirectorySource
from swarm.demo.generated import write_checkpoint

IDS = [5, 7, 11, 5, 7, 13, 2]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder / "model")
    with Engine.open(DirectorySource(folder / "model"), Options()) as opened:
        yield opened


def expected(engine: Engine) -> list[Score]:
    rows = [log_probabilities(row) for row in logits(engine.model, engine.experts, IDS)]
    told = [
        Score(token, float(row[token]), tuple(top_tokens(row, 2)))
        for token, row in zip(IDS[1:], rows, strict=False)
    ]
    return [Score(IDS[0], None, ()), *told]


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_pieces_make_no_difference(engine: Engine, rows: int) -> None:
    scores, steps = Scores(engine.model, engine.experts, IDS, 2), 1
    while not scores.step(rows):
        steps += 1
    assert scores.result == expected(engine)
    assert steps == -(-len(IDS) // rows) + 1


def test_what_was_wrong_is_read_anew(engine: Engine) -> None:
    doubts = engine.experts.doubts
    scores = Scores(engine.model, engine.experts, IDS, 2)
    scores.step(3)
    doubts.withdraw(doubts.current, doubts.current, "a peer lied")
    scores.step(5)
    assert scores.state.length == 5
    while not scores.step():
        pass
    doubts.open(doubts.current)
    assert not scores.step()
    doubts.close(doubts.current)
    assert scores.step()
    assert scores.result == expected(engine)


def test_what_is_wrong_again_and_again_is_given_up(engine: Engine) -> None:
    doubts = engine.experts.doubts
    scores = Scores(engine.model, engine.experts, IDS, 2)
    for _ in range(MOST_REDOS + 1):
        scores.step()
        doubts.withdraw(doubts.current, doubts.current, "a peer lied")
    with pytest.raises(FalsifiedTooOften, match="a peer lied"):
        scores.step()
