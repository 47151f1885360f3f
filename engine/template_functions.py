"""What templates can call: methods of texts, and filters that stand in place of Jinja's own.

Each checks, before it does anything, how large its result can become.
"""

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.filters import do_indent, make_attrgetter
from jinja2.runtime import Undefined

from engine.budget import MOST_ITEMS, current, refuse_size
from engine.errors import TemplateError

LONGEST_FORM = 1 << 16  # characters of a text that is filled in
LONGEST_NUMBER = 400  # characters of a number that is filled in
LARGEST_OPTION = 1 << 20  # of filters: widths, lengths, places
LARGEST_INDENT = 16
PADDED = ("center", "ljust", "rjust", "zfill")
CUT = ("rsplit", "split", "splitlines")
PLAIN = {
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
    "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower",
    "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rstrip", "startswith",
    "strip", "swapcase", "title", "upper",
}  # fmt: skip
FORMS = ("format", "format_map")


def text_method(text: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The method of a text, called with arguments that were weighed. TemplateError for methods that are not known."""
    name = method.__name__
    if name == "replace":
        return current().made(replaced(text, *args, **kwargs))
    if name == "join":
        return joined(args[0], text)
    if name in CUT:
        separator = args[0] if args and name != "splitlines" else kwargs.get("sep")
        refuse_pieces(text.count(separator) if isinstance(separator, str) and separator else len(text) // 2)
        return current().made_pieces(method(*args, **kwargs))
    if name in FORMS:
        refuse_form(text, (*args, *kwargs.values()))
    elif name in PADDED:
        refuse_numbers(args)
    elif name not in PLAIN:
        raise TemplateError(f"the chat template calls {name[:40]!r} of a text, which is not known")
    return current().made(method(*args, **kwargs))


def refuse_pieces(count: int) -> None:
    """TemplateError for a list of so many items, before it is made."""
    if count > MOST_ITEMS:
        raise TemplateError(f"the chat template makes a list of more than {MOST_ITEMS:,} items")


def refuse_numbers(options: Iterable[object]) -> None:
    """TemplateError for widths and lengths beyond reason."""
    for value in options:
        if isinstance(value, int | float) and not abs(value) <= LARGEST_OPTION:
            raise TemplateError(f"the chat template asks for {value:.3g} characters or digits, beyond reason")


def refuse_form(form: str, values: object) -> None:
    """TemplateError where a text that is filled in, with % or with braces, could become too long."""
    widths = re.findall(r"\d+", form) if len(form) <= LONGEST_FORM else ["too long"]
    if any(len(width) > 4 for width in widths) or re.search(r"%[^a-zA-Z%]*\*|\{[^{}]*\{", form):
        raise TemplateError("the chat template pads a text beyond reason")
    places = form.count("%") + form.count("{")
    refuse_size(len(form) + sum(map(int, widths)) + places * (current().weigh(values) + LONGEST_NUMBER))


def joined(parts: Iterable[Any], separator: str = "") -> str:
    """The parts as texts, one after the other."""
    budget = current()
    pieces: list[str] = []
    size = 0
    for part in parts:
        size += budget.weigh(part) + len(separator)
        refuse_size(size)
        pieces.append(part if isinstance(part, str) else str(part))
    return budget.made(separator.join(pieces))


def concatenated(pieces: Iterable[str]) -> str:
    """What a block wrote, as one text."""
    pieces = list(pieces)
    refuse_size(sum(map(len, pieces)))
    return current().made("".join(pieces))


def replaced(text: object, old: object, new: object, count: int | None = None) -> str:
    """`text` with `new` in place of `old`, at most `count` times."""
    text, old, new = str(text), str(old), str(new)
    limit = -1 if count is None else int(count)
    found = text.count(old) if limit < 0 else min(text.count(old), limit)
    refuse_size(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, limit)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, parts: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """Jinja's `join`."""
    if attribute is not None:
        parts = map(make_attrgetter(environment, attribute), parts)
    return joined(parts, str(d))


@jinja2.pass_environment
def _sum(
    environment: jinja2.Environment,
    items: Iterable[Any],
    attribute: str | int | None = None,
    start: float = 0,
) -> float:
    """Jinja's `sum`, of numbers alone."""
    if attribute is not None:
        items = map(make_attrgetter(environment, attribute), items)
    for item in items:
        if not isinstance(item, int | float) or not isinstance(start, int | float):
            raise TemplateError("the chat template adds up what are no numbers")
        start += item
    return start


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's `indent`."""
    refuse_size(len(text) + (2 + len(text.splitlines())) * (len(width) if isinstance(width, str) else width))
    return do_indent(text, width, first, blank)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it in templates: characters as they are, nothing escaped for HTML."""
    if isinstance(value, Undefined):
        raise TemplateError("the chat template writes a value that the conversation does not have as JSON")
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= LARGEST_INDENT):
        raise TemplateError("the chat template indents JSON beyond reason")
    if separators is not None and any(len(separator) > LARGEST_INDENT for separator in separators):
        raise TemplateError("the chat template separates JSON beyond reason")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    pieces: list[str] = []
    size = 0
    for piece in encoder.iterencode(value):
        size += len(piece)
        refuse_size(size)
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"the model's chat template refuses the conversation: {str(message)[:300]}")


def _strftime_now(form: str) -> str:
    if len(form) > 100 or re.search(r"\d{3}", form):
        raise TemplateError("the chat template asks for a date beyond reason")
    return datetime.now().strftime(form)


FILTERS = {"indent": _indent, "join": _join, "replace": replaced, "sum": _sum, "tojson": _to_json}
GLOBALS = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
