"""The colours of rendered text, apart from Textual's own widgets: calm, few, and readable on both grounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.style import Style


@dataclass(frozen=True)
class Palette:
    """Styles by meaning. `syntax` maps names of Pygments token types to styles."""

    text: Style
    muted: Style
    accent: Style
    heading: Style
    strong: Style
    emphasis: Style
    code: Style
    """Code within a line."""
    block: Style
    """The ground of a code block."""
    link: Style
    rule: Style
    bar: Style
    """The bar beside the user's messages."""
    error: Style
    warning: Style
    good: Style
    found: Style
    """A search hit."""
    heat: tuple[Style, ...]
    """From nothing held to many replicas."""
    syntax: Mapping[str, Style]


def _palette(
    *, text: str, muted: str, accent: str, heading: str, code: str, ground: str, link: str, rule: str,
    error: str, warning: str, good: str, found: str, heat: tuple[str, ...], syntax: Mapping[str, str],
) -> Palette:  # fmt: skip
    return Palette(
        text=Style.parse(text),
        muted=Style.parse(muted),
        accent=Style.parse(accent),
        heading=Style.parse(heading),
        strong=Style(bold=True),
        emphasis=Style(italic=True),
        code=Style.parse(code),
        block=Style.parse(ground),
        link=Style.parse(link),
        rule=Style.parse(rule),
        bar=Style.parse(accent),
        error=Style.parse(error),
        warning=Style.parse(warning),
        good=Style.parse(good),
        found=Style.parse(found),
        heat=tuple(Style.parse(item) for item in heat),
        syntax={name: Style.parse(style) for name, style in syntax.items()},
    )


DARK = _palette(
    text="#d5d9e0",
    muted="#7f8794",
    accent="#7fb4ca",
    heading="bold #e6c384",
    code="#e0af8b",
    ground="on #1f242c",
    link="underline #8ab4d8",
    rule="#3a424e",
    error="#e88388",
    warning="#dfb778",
    good="#98bb8c",
    found="#14171c on #e6c384",
    heat=("#3a424e", "#c4746e", "#5f8f7b", "#7fb08f", "#a3cfa5", "#cfe8c8"),
    syntax={
        "Keyword": "#b29bd0",
        "Keyword.Constant": "#dca27c",
        "Keyword.Type": "#7fb4ca",
        "Name.Builtin": "#7fb4ca",
        "Name.Function": "#8fb4e0",
        "Name.Class": "#e6c384",
        "Name.Decorator": "#dfb778",
        "Name.Exception": "#e6c384",
        "Name.Tag": "#b29bd0",
        "Name.Attribute": "#8fb4e0",
        "Literal.String": "#98bb8c",
        "Literal.Number": "#dca27c",
        "Comment": "italic #7f8794",
        "Operator": "#a9b1bd",
        "Punctuation": "#a9b1bd",
        "Generic.Deleted": "#e88388",
        "Generic.Inserted": "#98bb8c",
        "Generic.Heading": "bold",
    },
)

LIGHT = _palette(
    text="#2b3038",
    muted="#6d7480",
    accent="#2f6f8f",
    heading="bold #8a5a12",
    code="#9a4f1c",
    ground="on #eceef1",
    link="underline #2a5d9c",
    rule="#c9ced6",
    error="#b3363c",
    warning="#8f6414",
    good="#3f7a3a",
    found="#ffffff on #8a5a12",
    heat=("#c9ced6", "#b3554d", "#8fb89d", "#5f9b78", "#3a7d58", "#1f5c3c"),
    syntax={
        "Keyword": "#6f4fa3",
        "Keyword.Constant": "#9a4f1c",
        "Keyword.Type": "#2f6f8f",
        "Name.Builtin": "#2f6f8f",
        "Name.Function": "#2a5d9c",
        "Name.Class": "#8a5a12",
        "Name.Decorator": "#8f6414",
        "Name.Exception": "#8a5a12",
        "Name.Tag": "#6f4fa3",
        "Name.Attribute": "#2a5d9c",
        "Literal.String": "#3f7a3a",
        "Literal.Number": "#9a4f1c",
        "Comment": "italic #6d7480",
        "Operator": "#525a66",
        "Punctuation": "#525a66",
        "Generic.Deleted": "#b3363c",
        "Generic.Inserted": "#3f7a3a",
        "Generic.Heading": "bold",
    },
)

TERMINAL = _palette(
    text="default",
    muted="dim",
    accent="cyan",
    heading="bold yellow",
    code="yellow",
    ground="default",
    link="underline",
    rule="dim",
    error="red",
    warning="yellow",
    good="green",
    found="reverse",
    heat=("dim", "red", "yellow", "green", "bold green", "bold bright_green"),
    syntax={
        "Keyword": "magenta",
        "Name.Function": "blue",
        "Name.Class": "yellow",
        "Literal.String": "green",
        "Literal.Number": "yellow",
        "Comment": "dim italic",
    },
)
