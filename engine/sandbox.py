"""Jinja for templates that come with a model: no reach into Python, and bounds on time, size and loops.

A template is a program from outside. Jinja's immutable sandbox keeps it from the interpreter's insides;
what it leaves open, endless loops and enormous strings, is bounded here: every iteration is counted, and
whatever can multiply a string's length (`*`, `+`, `~`, padding, replacing) is checked before it is done.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.runtime import Context, Undefined

from engine.errors import TemplateError

LONGEST_TEXT = 16 << 20  # characters a template may make
MOST_STEPS = 2_000_000  # loop iterations and calls a rendering may take
LONGEST_TIME_S = 10.0
BUDGET = "budget of this rendering"  # a key that no template can name


class Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self.steps = MOST_STEPS
        self.deadline = time.monotonic() + LONGEST_TIME_S

    def step(self) -> None:
        """Counts one iteration or call."""
        self.steps -= 1
        if self.steps < 0 or (self.steps & 1023 == 0 and time.monotonic() > self.deadline):
            raise TemplateError("the chat template does not come to an end; the model's template is broken")


def _refuse_size(size: int) -> None:
    if size > LONGEST_TEXT:
        raise TemplateError(f"the chat template makes a text of more than {LONGEST_TEXT:,} characters")


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, set up as `transformers` sets up its own, with bounds."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, Generation],
        )
        self.filters["tojson"] = _to_json
        self.filters["counted"] = _counted
        self.filters["joined"] = _joined
        self.filters["replace"] = _replace
        for name in ("center", "xmlattr", "pprint", "wordwrap", "urlize", "format", "random"):
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Parses, then puts a counter around every loop and a check around every `~`."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = _filtered(loop.iter, "counted")
        for parent in list(tree.find_all(jinja2.nodes.Node)):
            for field, value in parent.iter_fields():
                if isinstance(value, jinja2.nodes.Concat):
                    setattr(parent, field, _concatenation(value))
                elif isinstance(value, list):
                    value[:] = [
                        _concatenation(item) if isinstance(item, jinja2.nodes.Concat) else item
                        for item in value
                    ]
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) < 1e6 and abs(right) < 64):
            raise TemplateError("the chat template computes a power too large to be meant")
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(count, int):
                    _refuse_size(len(text) * count)
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _refuse_size(len(left) + len(right))
        if operator == "%" and isinstance(left, str) and any(digits > 4 for digits in _digit_runs(left)):
            raise TemplateError("the chat template pads a text beyond reason")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _budget(context).step()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            name = getattr(function, "__name__", "")
            if name == "replace":
                return _replace(owner, *args)
            if name == "join":
                return _joined(_counted(context, args[0]), owner)
            if name in ("format", "format_map") and any(digits > 4 for digits in _digit_runs(owner)):
                raise TemplateError("the chat template pads a text beyond reason")
            if (
                name in ("center", "ljust", "rjust", "zfill", "expandtabs")
                and args
                and isinstance(args[0], int)
            ):
                _refuse_size(args[0] if name != "expandtabs" else args[0] * len(owner))
        return super().call(context, function, *args, **kwargs)


class Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`: marks what an assistant wrote, for training. Here it only
    passes through."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own way

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _concatenation(node: jinja2.nodes.Concat) -> jinja2.nodes.Filter:
    return _filtered(jinja2.nodes.List(list(node.nodes), lineno=node.lineno), "joined")


def _budget(context: Context) -> Budget:
    budget = context.parent[BUDGET]
    if not isinstance(budget, Budget):
        raise TemplateError("a chat template was rendered without a budget")
    return budget


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget(context)
    for item in items:
        budget.step()
        yield item


def _joined(parts: Iterable[Any], separator: str = "") -> str:
    pieces: list[str] = []
    size = 0
    for part in parts:
        pieces.append(str(part))
        size += len(pieces[-1]) + len(separator)
        _refuse_size(size)
    return separator.join(pieces)


def _replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    limit = -1 if count is None else int(count)
    found = text.count(old) if limit < 0 else min(text.count(old), limit)
    _refuse_size(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, limit)


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
    if indent is not None and not 0 <= int(indent) <= 16:
        raise TemplateError("the chat template indents JSON beyond reason")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"the model's chat template refuses the conversation: {str(message)[:300]}")


def _strftime_now(form: str) -> str:
    if len(form) > 100:
        raise TemplateError("the chat template asks for a date of more than 100 characters")
    return datetime.now().strftime(form)


def _digit_runs(text: str) -> Iterator[int]:
    run = 0
    for character in text:
        run = run + 1 if character.isdigit() else 0
        yield run


def compile_template(source: str) -> Callable[[dict[str, Any]], str]:
    """A function from the template's variables to the text. Raises TemplateError, here and there."""
    if len(source) > LONGEST_TEXT:
        raise TemplateError("the chat template is too long to be one")
    try:
        template = Environment().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise TemplateError(f"the model's chat template is not valid Jinja: {error}") from None

    def render(variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.generate({**variables, BUDGET: Budget()}):
                pieces.append(piece)
                size += len(piece)
                _refuse_size(size)
        except (jinja2.TemplateError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateError(f"the model's chat template fails on this conversation: {error}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the model's chat template fails on this conversation: {error}") from None
        return "".join(pieces)

    return render
