"""Code to coloured lines, by Pygments; a language that nobody knows stays plain."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rich.style import Style
from rich.text import Text

from tui.palette import Palette

_PLAIN = Style()


def code_lines(code: str, language: str, palette: Palette) -> list[Text]:
    """The lines of some code, coloured. `language` is the word after the fence, perhaps empty."""
    lexer = _lexer(language.split()[0].lower() if language.split() else "")
    if lexer is None:
        return [Text(line) for line in code.split("\n")]
    lines = [Text()]
    for kind, value in lexer.get_tokens(code):
        style = _style(str(kind), palette)
        first, *others = value.split("\n")
        lines[-1].append(first, style)
        for part in others:
            lines.append(Text())
            lines[-1].append(part, style)
    while len(lines) > code.count("\n") + 1:
        lines.pop()
    return lines


@lru_cache(64)
def _lexer(language: str) -> Any:
    """The Pygments lexer of a language, or None."""
    # Pygments is slow to import, and the first paint does not need it.
    from rich.syntax import Syntax

    return Syntax("", language).lexer if language else None


def _style(kind: str, palette: Palette) -> Style:
    """The style of a token type such as Token.Name.Function, or of the nearest type above it."""
    name = kind.removeprefix("Token.")
    while name:
        style = palette.syntax.get(name)
        if style is not None:
            return style
        name = name.rpartition(".")[0]
    return _PLAIN


def warm_up() -> None:
    """Import what the first code block would wait for."""
    _lexer("python")
