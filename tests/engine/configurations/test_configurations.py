"""What a config.json can say, case by case, against transformers; and what has to be refused by name."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine, Options
from engine.errors import ConfigError
from engine.models import family_of
from engine.source import DirectorySource
from tests.engine.configurations.answers import Answer, load_answers
from tests.engine.configurations.bases import BASES
from tests.engine.configurations.cases import CASES, REFUSED, merged, wrapped
from tests.engine.configurations.checkpoint import write
from tests.engine.reference import feed


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return load_answers()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_reference(answers: dict[str, Answer], tmp_path: Path, name: str) -> None:
    case, answer = CASES[name], answers[name]
    write(tmp_path, case.config, answer.shapes, case.shards)
    prompt = case.prompt()
    with DirectorySource(tmp_path) as source, Engine.open(source, Options(weights="native")) as engine:
        logits = feed(engine, engine.model.new_state(), prompt)
        assert np.abs(logits[case.positions()] - answer.logits).max() <= answer.atol
        state = engine.model.new_state()
        cuts = [0, 1, 3, len(prompt) - 2, len(prompt) - 1, len(prompt)]
        parts = [feed(engine, state, prompt[begin:end]) for begin, end in pairwise(cuts)]
        switch = (
            engine.model.switches_at or 0
        )  # what is no longer than that when it is read is turned otherwise
        alike = next(begin for begin, end in pairwise(cuts) if len(prompt) <= switch or end > switch)
        np.testing.assert_array_equal(np.concatenate(parts)[alike:], logits[alike:])


@pytest.mark.parametrize(("family", "change", "says"), REFUSED)
def test_what_a_family_does_not_compute_is_refused_by_name(
    family: str, change: dict[str, Any], says: str
) -> None:
    config = merged(family, change) if family in BASES else wrapped(family, change)
    with pytest.raises(ConfigError, match=says):
        family_of(config).parse(config)
