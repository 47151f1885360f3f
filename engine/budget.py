"""What one rendering of a chat template may still take: steps, time, and memory for what it makes.

Whatever a template does is a step; what it makes, texts and lists, is charged by its bytes, also when it is dropped
again. Before something is done whose cost grows with a value as a whole (writing it, comparing, sorting, hashing), the
value is weighed: lists that hold the same list twice can be small and yet be endless as a text.
"""

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from engine.errors import TemplateError

T = TypeVar("T")

LONGEST_TEXT = 16 << 20  # characters of one value as a text, and of the whole that comes out
MOST_ITEMS = 1 << 20  # of a list; characters of a text that is cut into pieces
MOST_BYTES = 512 << 20  # of all that a rendering makes
MOST_STEPS = 2_000_000  # loop iterations, calls, filters and operations of a rendering
LONGEST_TIME_S = 10.0
WEIGHT_BYTES = 200  # of a list's weight that is remembered
PIECE_BYTES = 100  # an item of a list that a filter makes, beside what it refers to


class Budget:
    """What one rendering may still take. TemplateError when something does not fit it."""

    def __init__(self) -> None:
        self._steps = MOST_STEPS
        self._bytes = MOST_BYTES
        self._deadline = time.monotonic() + LONGEST_TIME_S
        self._weights: dict[int, tuple[int, object]] = {}
        """By id, with what has the id, so that it stays there."""

    def step(self) -> None:
        """Counts one step."""
        self._steps -= 1
        if self._steps < 0 or time.monotonic() > self._deadline:
            raise TemplateError("the chat template does not come to an end; the model's template is broken")

    def made(self, value: T, piece_bytes: int = 0) -> T:
        """Charges a value that was just made, and each item of a list with `piece_bytes`; gives it back."""
        if isinstance(value, str):
            refuse_size(len(value))
            self._charge(sys.getsizeof(value))
        elif isinstance(value, list | tuple | dict):
            if len(value) > MOST_ITEMS:
                raise TemplateError(f"the chat template makes a list of more than {MOST_ITEMS:,} items")
            self._charge(sys.getsizeof(value) + (1 + len(value)) * piece_bytes)
        return value

    def made_pieces(self, pieces: list[str]) -> list[str]:
        """Charges a list of texts that were made together with it."""
        self._charge(sum(map(sys.getsizeof, pieces)))
        return self.made(pieces)

    def weigh(self, value: object) -> int:
        """About how many characters a value has as a text, that of its parts included."""
        size = self._weight(value)
        refuse_size(size)
        return size

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each a step, and weighed."""
        for item in items:
            self.step()
            self.weigh(item)
            yield item

    def _weight(self, value: object) -> int:
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if not isinstance(value, Collection) or isinstance(value, range):
            return 24
        known = self._weights.get(id(value))
        if known is not None:
            return known[0]
        self.step()
        weight = 2 + sum(2 + self._weight(part) for part in value)
        if isinstance(value, Mapping):
            weight += sum(2 + self._weight(part) for part in value.values())
        if type(value) in (list, tuple, dict):
            self._charge(WEIGHT_BYTES)
            self._weights[id(value)] = weight, value
        return weight

    def _charge(self, size: int) -> None:
        self._bytes -= size
        if self._bytes < 0:
            raise TemplateError(
                f"the chat template makes more than {MOST_BYTES >> 20} MiB of texts and lists; it is broken"
            )


def refuse_size(size: int) -> None:
    """TemplateError for a text of so many characters, before it is made."""
    if size > LONGEST_TEXT:
        raise TemplateError(f"the chat template makes a text of more than {LONGEST_TEXT:,} characters")


_CURRENT: ContextVar[Budget] = ContextVar("budget of the rendering under way")


def current() -> Budget:
    """The budget of the rendering under way in this thread. TemplateError when none is: templates are compiled without
    computing anything."""
    budget = _CURRENT.get(None)
    if budget is None:
        raise TemplateError("a part of a chat template was computed outside of a rendering")
    return budget


@contextmanager
def rendering() -> Iterator[Budget]:
    """A new budget for what is done within."""
    budget = Budget()
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)
