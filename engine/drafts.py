"""Guessing how a reply goes on, so that one pass reads several of its tokens.

Where experts are far away a pass of some rows takes hardly longer than one of a single row: each layer is a round
trip either way. So tokens that may come next are read along with the newest one; those that turn out to be drawn were
read in time, what follows the first other one is forgotten. No token depends on it: a row is the same in any company,
and each token is drawn from its own row (speculative decoding: Leviathan et al. 2023, arXiv 2211.17192).

Guesses come from the sequence itself: what followed the last tokens where they stood before (prompt lookup decoding,
Saxena 2023). Texts that are quoted, corrected, translated into code or continued as lists repeat themselves; others
are left alone, since a guess is only read when, by what passes took and guesses were worth so far, it makes the reply
faster.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median_low

import numpy as np

from engine.arrays import I32

ROWS = 8
"""Of a pass with guesses, at most."""
LONGEST = 16  # tokens that are compared with what stood before
SAMPLES = 5  # passes of a number of rows that are remembered
ROW_SHARE = 0.25  # of a pass of one row that another row is thought to cost, before one was measured
WORTH = 1.05  # how much faster a guess has to promise to be
RETRY = (
    64  # tokens after which a guess is read although it promises nothing: what passes take may have changed
)
RIGHT = 0.5  # share of guesses that come true, before any was compared
LEARNED = 0.1  # weight of the newest comparison


class Pace:
    """What passes of one model take, and how often guesses come true; learned as replies are made."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._right: dict[int, float] = {}

    def took(self, rows: int, seconds: float) -> None:
        """A pass of so many rows took so long."""
        self._seconds.setdefault(rows, deque(maxlen=SAMPLES)).append(seconds)

    def came_true(self, length: int, *, right: bool) -> None:
        """What followed `length` tokens before did, or did not, follow them again."""
        kind = min(length, LONGEST).bit_length()
        before = self._right.get(kind, RIGHT)
        self._right[kind] = before + LEARNED * (right - before)

    def worth(self, length: int, most: int) -> int:
        """How many of `most` guesses after `length` tokens known from before make a reply fastest."""
        one = self._estimate(1)
        if one is None:
            return 0
        best, speed = 0, WORTH / one
        chance = expected = 1.0
        for count in range(1, most + 1):
            chance *= self._right.get(min(length + count - 1, LONGEST).bit_length(), RIGHT)
            expected += chance
            seconds = self._estimate(1 + count) or one
            if expected / seconds > speed:
                best, speed = count, expected / seconds
        return best

    def _estimate(self, rows: int) -> float | None:
        """Seconds of a pass; None before one of a single row was measured."""
        if rows in self._seconds:
            return median_low(self._seconds[rows])
        if 1 not in self._seconds:
            return None
        one, most = median_low(self._seconds[1]), max(self._seconds)
        if most == 1:
            return one * (1 + ROW_SHARE * (rows - 1))
        return one + max(0.0, median_low(self._seconds[most]) - one) * (rows - 1) / (most - 1)


class Drafter:
    """Guesses for one sequence."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._tokens = np.empty(1024, np.int32)
        self._count = 0
        self._guess: list[int] = []  # what was thought to follow the first `_count` tokens
        self._length = 0  # of what they have in common with an earlier place
        self._idle = 0  # tokens since a guess was read

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """Tokens with which `ids`, which only ever grows, may go on: as many as pay, at most `most`."""
        self._take_in(ids)
        place, self._length = lookup(self._tokens[: self._count], LONGEST)
        period = self._tokens[place : self._count][:ROWS] if self._length else self._tokens[:0]
        self._guess = np.resize(period, ROWS if self._length else 0).tolist()
        most = min(most, len(self._guess))
        count = self.pace.worth(self._length, most)
        if not count and most and self._idle >= RETRY:
            count = 1
        self._idle = 0 if count else self._idle + 1
        return self._guess[:count]

    def forget(self, length: int) -> None:
        """All but the first `length` tokens were taken back."""
        self._count, self._guess = min(self._count, length), []

    def _take_in(self, ids: Sequence[int]) -> None:
        fresh = ids[self._count :]
        for place, (guessed, token) in enumerate(zip(self._guess, fresh, strict=False)):
            self.pace.came_true(self._length + place, right=guessed == token)
            if guessed != token:
                break
        if len(ids) > len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * len(ids))
        self._tokens[self._count : len(ids)] = fresh
        self._count = len(ids)


def lookup(tokens: I32, longest: int) -> tuple[int, int]:
    """Where the end of tokens int32 [n] stood before, and how much of it, up to `longest` tokens: the place behind the
    latest of the longest such stretches, and its length; length 0 when the last token is new.
    """
    last = len(tokens) - 1
    ends, place, length = np.flatnonzero(tokens[:last] == tokens[last]), 0, 0
    while len(ends) and length < longest:
        place, length = int(ends[-1]) + 1, length + 1
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[last - length]]
    return place, length
