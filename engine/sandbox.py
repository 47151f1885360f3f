"""Jinja for templates that come with a model: no reach into Python, and bounds on time, memory and loops.

A template is a program from outside. Jinja's immutable sandbox keeps it from the interpreter's insides; what it leaves
open is bounded here. Whatever computes (loops, calls, filters, tests, operators, comparisons, slices, lists, blocks
that are kept as texts) is led through a function that asks the rendering's `Budget`; of filters and of methods only
those are known whose cost is. What can multiply a text's length is checked before it is done.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from engine import template_functions
from engine.budget import PIECE_BYTES, current, refuse_size, rendering
from engine.errors import TemplateError

LONGEST_SOURCE = 1 << 19  # characters
MOST_BITS = 1 << 12  # of a whole number

# Filters that take a text as a whole, however long; others may cut it into pieces.
WHOLE_TEXTS = {
    "capitalize", "count", "d", "default", "e", "escape", "first", "last", "length", "lower", "replace", "reverse",
    "safe", "string", "tojson", "trim", "truncate", "upper",
}  # fmt: skip
FILTERS = WHOLE_TEXTS | {
    "abs", "dictsort", "float", "indent", "int", "items", "join", "list", "map", "max", "min", "reject", "rejectattr",
    "round", "select", "selectattr", "sort", "sum", "title", "unique",
}  # fmt: skip
METHODS = {"copy", "count", "get", "index", "items", "keys", "values"}  # of lists and objects
JINJA = (
    jinja2.utils.Cycler,
    jinja2.utils.Joiner,
    jinja2.runtime.LoopContext,
    type(None),
)  # whose methods may be called
HANDED_OVER = {"_block_vars", "_loop_vars"}  # by Jinja to whatever is called


class Namespace(jinja2.utils.Namespace):
    """Variables that outlive a loop. As a text it is a name, for it may hold itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, set up as `transformers` sets up its own, with bounds."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(template_functions.concatenated)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_written,
            extensions=[jinja2.ext.loopcontrols, Generation],
        )
        known = {name: self.filters[name] for name in FILTERS} | template_functions.FILTERS
        self.filters = {name: _bounded_filter(name, function) for name, function in known.items()}
        self.filters |= {"counted": _counted, "joined": _joined, "weighed": _weighed, "made": _made}
        tests: Any = self.tests
        self.tests = {name: _bounded_test(test) for name, test in tests.items()}
        self.globals.pop("lipsum", None)
        self.globals |= template_functions.GLOBALS
        self.globals["namespace"] = Namespace

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Parses, then leads through the budget what would not ask it by itself."""
        tree = super()._parse(source, name, filename)
        _Bounds().generic_visit(tree)
        return tree

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            current().weigh(argument)  # it is hashed
        return super().getitem(obj, argument)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.step()
        if operator == "**" and not (abs(left) < 1e6 and abs(right) < 64):
            raise TemplateError("the chat template computes a power too large to be meant")
        if operator == "*":
            _refuse_product(left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            refuse_size(len(left) + len(right))
        if operator == "%" and isinstance(left, str):
            template_functions.refuse_form(left, right)
        return budget.made(super().call_binop(context, operator, left, right))

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        named = {name: value for name, value in kwargs.items() if name not in HANDED_OVER}
        if not isinstance(function, jinja2.runtime.Macro):
            for value in (*args, *named.values()):
                budget.weigh(value)
        if isinstance(owner, str):
            return template_functions.text_method(owner, function, *args, **named)
        name = getattr(function, "__name__", "")
        if not isinstance(owner, JINJA) and name not in METHODS:
            raise TemplateError(f"the chat template calls {str(name)[:40]!r} of a value, which is not known")
        return budget.made(super().call(context, function, *args, **kwargs), PIECE_BYTES)


class Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`: marks what an assistant wrote, for training. Here it only
    passes through."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own way

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounds(jinja2.visitor.NodeTransformer):
    """Puts filters around what Jinja compiles to plain Python."""

    def visit(self, node: jinja2.nodes.Node, *args: Any, **kwargs: Any) -> jinja2.nodes.Node:
        self.generic_visit(node)
        match node:
            case jinja2.nodes.For():
                node.iter = _filtered(node.iter, "counted")
            case jinja2.nodes.Concat():
                return _filtered(jinja2.nodes.List(node.nodes, lineno=node.lineno), "joined")
            case jinja2.nodes.Compare():
                node.expr = _filtered(node.expr, "weighed")
            case jinja2.nodes.Operand():  # of a comparison
                node.expr = _filtered(node.expr, "weighed")
            case jinja2.nodes.Pair():
                node.key = _filtered(node.key, "weighed")  # it is hashed
            case jinja2.nodes.List() | jinja2.nodes.Dict() | jinja2.nodes.Tuple(ctx="load"):
                return _filtered(node, "made")
            case jinja2.nodes.Getitem(arg=jinja2.nodes.Slice()):
                return _filtered(node, "made")
        return node


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    budget = current()
    for item in items:
        budget.step()
        yield item


def _joined(parts: Iterable[Any]) -> str:
    return template_functions.joined(parts, "")


def _weighed(value: Any) -> Any:
    budget = current()
    budget.step()
    budget.weigh(value)
    return value


def _made(value: Any) -> Any:
    budget = current()
    budget.step()
    return budget.made(value)


@jinja2.pass_context  # so that Jinja writes nothing while it compiles
def _written(context: jinja2.runtime.Context, value: Any) -> Any:
    """A value that goes into the text."""
    if isinstance(value, str):
        return value
    budget = current()
    budget.weigh(value)
    return budget.made(str(value))


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is a step, whose arguments are weighed, and whose result is charged."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # after what Jinja hands over

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        passed, (value, *options) = args[:first], args[first:]
        for item in (value, *options, *kwargs.values()):
            budget.weigh(item)
        if name not in ("d", "default"):
            template_functions.refuse_numbers((*options, *kwargs.values()))
        if isinstance(value, str) and name not in WHOLE_TEXTS:
            template_functions.refuse_pieces(len(value))
        if isinstance(value, Iterator):
            value = budget.each(value)
        made = function(*passed, value, *options, **kwargs)
        if isinstance(value, str) and isinstance(made, list):
            return budget.made_pieces(made)
        return made if made is value else budget.made(made, PIECE_BYTES)

    return bounded


def _bounded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """A test that is a step, and whose arguments are weighed."""

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        for value in (*args, *kwargs.values()):
            budget.weigh(value)
        return function(*args, **kwargs)

    return bounded


def _refuse_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MOST_BITS:
            raise TemplateError("the chat template computes a product too large to be meant")
        return
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(value, str):
            refuse_size(len(value) * count)
        elif isinstance(count, int) and isinstance(value, list | tuple):
            template_functions.refuse_pieces(len(value) * count)


def compile_template(source: str) -> Callable[[dict[str, Any]], str]:
    """A function from the template's variables to the text. Raises TemplateError, here and there."""
    if len(source) > LONGEST_SOURCE:
        raise TemplateError(
            f"the chat template has more than {LONGEST_SOURCE:,} characters; it is too long to be one"
        )
    try:
        template = Environment().from_string(source)
    except Exception as error:  # noqa: BLE001  a program from outside: Jinja and Python refuse it in many ways
        raise TemplateError(f"the model's chat template is not valid Jinja: {_short(error)}") from None

    def render(variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        try:
            with rendering():
                for piece in template.generate(variables):
                    pieces.append(piece)
                    size += len(piece)
                    refuse_size(size)
        except TemplateError:
            raise
        except Exception as error:  # noqa: BLE001  a program from outside fails as it likes
            raise TemplateError(
                f"the model's chat template fails on this conversation: {_short(error)}"
            ) from None
        return "".join(pieces)

    return render


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300]
