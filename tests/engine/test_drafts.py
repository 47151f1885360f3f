"""Tokens that are guessed and read along: whoever guesses, and however well, the reply is the same."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.arrays import F32, I32
from engine.batch import ReplyBatch
from engine.drafts import LONGEST, RETRY, ROWS, Drafter, Pace, lookup
from engine.engine import Engine
from engine.errors import ExpertsUnavailable
from engine.experts import Experts
from engine.generate import generate
from engine.reply import Done, Reply, Token
from engine.sampling import Sampling
from tests.engine.drafters import Told
from tests.engine.liars import Liar
from tests.engine.reference import golden, opened
from tests.engine.test_families import FOLDERS


class Distant:
    """Experts that say they are far away; they fail when asked for more rows than `most`. Counts its passes."""

    looks_ahead = False
    far = True

    def __init__(self, experts: Experts, most: int = ROWS) -> None:
        self.experts, self.most, self.rows = experts, most, list[int]()
        self.doubts = experts.doubts

    def run_pass(self, rows: int, work: Callable[[], F32]) -> F32:
        """See `engine.experts.Experts`."""
        self.rows.append(rows)
        return work()

    def begin(self, layer: int, rows: F32, ids: I32, weights: F32) -> Callable[[], F32]:
        """See `engine.experts.Experts`."""
        if self.most < len(rows) <= ROWS:
            raise ExpertsUnavailable("an expert that nobody has")
        return self.experts.begin(layer, rows, ids, weights)

    def local_bank(self) -> None:
        """See `engine.experts.Experts`."""

    def prefetch(self, layer: int, ids: I32) -> None:
        """See `engine.experts.Experts`."""
        self.experts.prefetch(layer, ids)


def reply(engine: Engine, ids: Sequence[int], drafter: Drafter | None = None, **more: Any) -> Reply:
    more.setdefault("max_tokens", 20)
    return Reply(list(ids), engine.model.new_state(), drafter=drafter, **more)


def made(engine: Engine, experts: Experts, one: Reply) -> list[tuple[int, float | None, Any]]:
    """The tokens of a reply as they are told, with their probabilities."""
    events = generate(engine.model, experts, one)
    return [(event.token, event.logprob, event.alternatives) for event in events if isinstance(event, Token)]


@pytest.mark.parametrize(
    ("name", "mistakes"),
    [
        *((name, 0.3) for name in FOLDERS),
        ("olmoe", 0.0),
        ("olmoe", 1.0),
        ("qwen3_next", 0.0),
        ("qwen3_next", 1.0),
    ],
)
def test_guesses_do_not_change_a_reply_of_any_family(oracle: Path, name: str, mistakes: float) -> None:
    engine, prompt = opened(oracle / name, "q8"), golden(oracle / name).prompt[:9]
    plain = reply(engine, prompt)
    expected = made(engine, engine.experts, plain)
    distant, guessed = Distant(engine.experts), reply(engine, prompt, Told(plain.ids, mistakes))
    assert made(engine, distant, guessed) == expected
    assert guessed.state.length <= len(guessed.ids)
    assert guessed.stats.reply_tokens == 20
    assert (guessed.stats.guessed_right == 0) == (mistakes == 1.0)
    if mistakes == 0.0:
        assert guessed.stats.guessed_right == guessed.stats.guessed_tokens
        assert len(distant.rows) < 15
    assert max(distant.rows[1:]) <= ROWS
    assert continued(engine, guessed) == continued(engine, plain)


def continued(engine: Engine, one: Reply) -> list[int]:
    """What follows, in the state of a reply, when its last tokens are replaced."""
    one.state.truncate(one.state.floor(min(one.state.length, 20)))
    more = Reply([*one.ids[:21], 3], one.state, max_tokens=3)
    list(generate(engine.model, engine.experts, more))
    return more.generated


@pytest.fixture
def engine(oracle: Path) -> Engine:
    return opened(oracle / "olmoe", "q8")


@pytest.fixture
def prompt(oracle: Path) -> list[int]:
    return golden(oracle / "olmoe").prompt[:9]


@pytest.mark.parametrize("seed", range(6))
def test_luck_probabilities_and_penalties_are_those_of_a_reply_without_guesses(
    engine: Engine, prompt: list[int], seed: int
) -> None:
    how = Sampling(temperature=1.0, seed=seed, repeat_penalty=1.2, frequency_penalty=0.3, top_p=0.9)
    plain = reply(engine, prompt, sampling=how, logprobs=3)
    expected = made(engine, engine.experts, plain)
    guessed = reply(engine, prompt, Told(plain.ids, 0.3, seed), sampling=how, logprobs=3)
    assert made(engine, Distant(engine.experts), guessed) == expected
    assert guessed.stats.guessed_right > 0


def test_a_reply_ends_where_it_would_without_guesses(engine: Engine, prompt: list[int]) -> None:
    whole = reply(engine, prompt)
    made(engine, engine.experts, whole)
    for count in range(1, 20):
        for stop in (frozenset[int](), frozenset({whole.generated[count - 1]})):
            plain = reply(engine, prompt, stop_ids=stop, max_tokens=count)
            made(engine, engine.experts, plain)
            guessed = reply(engine, prompt, Told(whole.ids, 0.0, count), stop_ids=stop, max_tokens=count)
            made(engine, Distant(engine.experts), guessed)
            assert (guessed.ids, guessed.finished) == (plain.ids, plain.finished)
            assert guessed.state.length == plain.state.length


def test_guesses_end_with_the_context(
    engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reply(engine, prompt)
    made(engine, engine.experts, whole)
    monkeypatch.setattr(engine.model, "context_length", 21)
    plain, guessed = (reply(engine, prompt, who) for who in (None, Told(whole.ids, 0.0)))
    assert made(engine, Distant(engine.experts), guessed) == made(engine, engine.experts, plain)
    assert guessed.finished == plain.finished == "context"


def test_a_guess_that_cannot_be_computed_costs_nothing_but_the_guesses(
    engine: Engine, prompt: list[int]
) -> None:
    plain = reply(engine, prompt)
    expected = made(engine, engine.experts, plain)
    distant, guessed = Distant(engine.experts, most=1), reply(engine, prompt, Told(plain.ids, 0.0, 3))
    assert made(engine, distant, guessed) == expected
    assert sum(rows > 1 for rows in distant.rows[1:]) == 1
    assert guessed.stats.guessed_tokens == 0


def test_an_error_without_guesses_is_told(engine: Engine, prompt: list[int]) -> None:
    distant = Distant(engine.experts, most=0)
    with pytest.raises(ExpertsUnavailable):
        made(engine, distant, reply(engine, prompt, Told(prompt, 0.0)))


def test_nothing_is_guessed_in_company_or_where_experts_are_near(engine: Engine, prompt: list[int]) -> None:
    plain = reply(engine, prompt)
    made(engine, engine.experts, plain)
    near = reply(engine, prompt, Told(plain.ids, 0.0))
    made(engine, engine.experts, near)
    assert near.stats.guessed_tokens == 0
    company = ReplyBatch(engine.model, Distant(engine.experts))
    both = [reply(engine, prompt, Told(plain.ids, 0.0)) for _ in range(2)]
    for one in both:
        company.add(one)
    while len(company):
        company.step()
    assert [one.ids for one in both] == [plain.ids] * 2
    assert [one.stats.guessed_tokens for one in both] == [0, 0]


@pytest.mark.parametrize("lie", range(2, 7))
@pytest.mark.parametrize("found", [None, 1, 2])
@pytest.mark.parametrize("name", ["olmoe", "qwen3_next"])
def test_lies_about_guesses_are_taken_back(oracle: Path, name: str, lie: int, found: int | None) -> None:
    engine, prompt = opened(oracle / name, "q8"), golden(oracle / name).prompt[:9]
    whole = reply(engine, prompt)
    made(engine, engine.experts, whole)
    stop = frozenset({whole.generated[-1]})
    for end in (frozenset[int](), stop):
        plain = reply(engine, prompt, stop_ids=end)
        made(engine, engine.experts, plain)
        liar = Liar(engine.experts, {lie}, {lie + found} if found else ())
        if found is None:
            liar.wait_for_it()
        guessed = reply(engine, prompt, Told(whole.ids, 0.2, lie), stop_ids=end)
        events = list(generate(engine.model, Distant(liar), guessed))
        assert guessed.ids == plain.ids
        assert isinstance(events[-1], Done)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_what_was_said_before_is_found_where_it_was_said(ids: list[int]) -> None:
    tokens = np.array(ids, np.int32)
    place, length = lookup(tokens, LONGEST)

    def common(end: int) -> int:
        """How much of the end of `ids` stands before `end`."""
        return next((n for n in range(end) if ids[end - 1 - n] != ids[-1 - n]), end)

    best = max((min(common(end), LONGEST) for end in range(1, len(ids))), default=0)
    assert length == best
    if length:
        assert place == max(end for end in range(1, len(ids)) if common(end) >= best)


def drafted(drafter: Drafter, ids: Sequence[int], most: int = ROWS - 1) -> list[list[int]]:
    """What was guessed before each token of a sequence from its second on."""
    return [drafter.draft(ids[:count], most) for count in range(1, len(ids))]


def paced(one: float, each: float) -> Pace:
    """Passes that were measured to take so long, and so much longer with each further row."""
    pace = Pace()
    for rows in range(1, ROWS + 1):
        pace.took(rows, one + each * (rows - 1))
    return pace


def test_nothing_is_guessed_before_a_pass_was_measured() -> None:
    assert not any(drafted(Drafter(Pace()), [1, 2, 3] * 20))


def test_repetition_is_guessed_as_far_as_a_pass_goes_where_rows_cost_little() -> None:
    guesses = drafted(Drafter(paced(1.0, 0.01)), [1, 2, 3] * 20)
    assert guesses[-1] == [3, 1, 2, 3, 1, 2, 3]
    assert guesses[:3] == [[], [], []]


def test_what_never_comes_true_is_not_guessed_any_more() -> None:
    luck = random.Random(1)
    ids = [token for number in range(300) for token in (7, 8, 100 + number)]
    guesses = drafted(Drafter(paced(1.0, 0.2)), ids)
    after = [guess for guess, told in zip(guesses, ids, strict=False) if told == 8]
    assert after[3]
    assert not any(after[20:])
    assert [guess[:1] for guess, told in zip(guesses, ids, strict=False) if told == 7][-1] == [8]
    assert luck


def test_rows_that_cost_as_much_as_passes_are_tried_now_and_then_only() -> None:
    guesses = drafted(Drafter(paced(1.0, 1.0)), [1, 2, 3] * 100)
    assert 2 <= sum(map(bool, guesses)) <= 300 // RETRY
    assert max(map(len, guesses)) == 1


def test_a_first_pass_that_compiled_kernels_does_not_count() -> None:
    pace = Pace()
    for rows in (1, 2):
        pace.took(rows, 30.0)
        pace.took(rows, 1.0 + 0.05 * rows)
    assert pace.worth(LONGEST, 1) == 1


def test_guesses_after_a_retraction_are_of_what_stands() -> None:
    drafter = Drafter(paced(1.0, 0.01))
    drafted(drafter, [1, 2, 3, 4, 5, 1, 2])
    drafter.forget(4)
    assert drafter.draft([1, 2, 3, 4, 1, 2], 2) == [3, 4]
