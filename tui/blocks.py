"""Markdown that arrives in pieces, cut into blocks of which only the last can still change.

A reply is thousands of tokens long and is shown while it grows. Rendering it anew for each token would cost
time in proportion to its square; so what is certainly complete is cut off and rendered once. Complete is
every top-level block that is followed by another, and every item of a top-level list that is followed by
another item. A long open code block is cut as well, between two of its lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LONG_CODE_LINES = 40
_KEPT_CODE_LINES = 8


@dataclass(frozen=True)
class Block:
    """A piece of Markdown that can be rendered alone."""

    source: str
    gap: bool = True
    """A blank line goes before it."""
    info: str = ""
    """Language of a code block that was cut; `source` is then plain code."""
    code: bool = False
    opens: bool = True
    closes: bool = True
    """Whether this part of a cut code block holds its beginning and its end."""


@dataclass
class _Fence:
    """The open code block whose first part was cut off."""

    opening: str
    info: str


def _block_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


@dataclass
class Splitter:
    """Feed it text; it returns the blocks that became complete. `tail` gives what may still change."""

    _text: str = ""
    _gap: bool = False
    _fence: _Fence | None = None
    _parser: MarkdownIt = field(default_factory=_block_parser, repr=False)

    def feed(self, piece: str) -> list[Block]:
        """Add text; the blocks that are complete from now on."""
        self._text += piece
        if "\n" not in self._text:
            return []
        return self._fence_lines() if self._fence else self._cut(final=False)

    def finish(self) -> list[Block]:
        """The text has ended: the remaining blocks."""
        if self._fence:
            rest = self._close_fence()
            return rest + (self._cut(final=True) if self._text.strip() else [])
        return self._cut(final=True)

    def tail(self) -> list[Block]:
        """The blocks that may still change, as they look now."""
        if self._fence:
            return [Block(self._text, False, self._fence.info, True, False, False)] if self._text else []
        return [Block(self._text, self._gap)] if self._text.strip() else []

    def _cut(self, *, final: bool) -> list[Block]:
        blocks: list[Block] = []
        lines = self._text.split("\n")
        tokens = self._parser.parse(self._text)
        starts = _starts(tokens)
        if not starts:
            if final:
                self._text = ""
            return blocks
        ends = [*starts[1:], (len(lines), False)]
        complete = len(starts) if final else len(starts) - 1
        for (start, in_list), (end, _) in zip(starts[:complete], ends[:complete], strict=True):
            source = "\n".join(lines[start:end]).rstrip("\n")
            loose = start > 0 and not lines[start - 1].strip()
            gap = self._gap and (loose or not in_list)
            blocks.append(Block(source, gap))
            self._gap = True
        if final:
            self._text = ""
            return blocks
        start, in_list = starts[-1]
        if complete:
            loose = start > 0 and not lines[start - 1].strip()
            self._gap = loose or not in_list
        self._text = "\n".join(lines[start:])
        return blocks + self._open_fence(tokens, start)

    def _open_fence(self, tokens: list[Token], start: int) -> list[Block]:
        """Cut an open top-level code block that has grown long."""
        last = tokens[-1]
        lines = self._text.split("\n")
        if last.type != "fence" or last.map is None or last.map[0] != start or len(lines) <= _LONG_CODE_LINES:
            return []
        if _closes(lines, last.markup):
            return []
        self._fence = _Fence(last.markup, last.info.strip())
        kept = lines[1:]
        self._text = "\n".join(kept)
        gap, self._gap = self._gap, True
        return [self._part(gap=gap, opens=True)]

    def _fence_lines(self) -> list[Block]:
        assert self._fence is not None
        lines = self._text.split("\n")
        for number, line in enumerate(lines[:-1]):
            if _is_closing(line, self._fence.opening):
                code, self._text = "\n".join(lines[:number]), "\n".join(lines[number + 1 :])
                block = Block(code, False, self._fence.info, True, False, True)
                self._fence = None
                return [block, *self._cut(final=False)]
        return [self._part(gap=False, opens=False)] if len(lines) > _LONG_CODE_LINES else []

    def _close_fence(self) -> list[Block]:
        assert self._fence is not None
        lines = self._text.split("\n")
        closing = (at for at, line in enumerate(lines) if _is_closing(line, self._fence.opening))
        number = next(closing, len(lines))
        block = Block("\n".join(lines[:number]).rstrip("\n"), False, self._fence.info, True, False, True)
        self._text = "\n".join(lines[number + 1 :])
        self._fence = None
        return [block]

    def _part(self, *, gap: bool, opens: bool) -> Block:
        """Cut the code before the last few lines, at a line of the outermost level if there is one."""
        assert self._fence is not None
        lines = self._text.split("\n")
        limit = len(lines) - _KEPT_CODE_LINES
        cut = limit
        for number in range(limit, limit // 2, -1):
            if lines[number][:1].strip() and not lines[number - 1].strip():
                cut = number
                break
        self._text = "\n".join(lines[cut:])
        return Block("\n".join(lines[:cut]), gap, self._fence.info, True, opens, False)


def split(text: str) -> list[Block]:
    """The blocks of a whole text."""
    return Splitter(text).finish()


def _starts(tokens: list[Token]) -> list[tuple[int, bool]]:
    """First lines of top-level blocks; lists give each item, marked True when it continues a list."""
    starts: list[tuple[int, bool]] = []
    in_list = False
    for token in tokens:
        if token.map is None:
            continue
        if token.level == 0 and token.nesting >= 0:
            in_list = token.type in ("bullet_list_open", "ordered_list_open")
            starts.append((token.map[0], False))
        elif (
            in_list and token.level == 1 and token.type == "list_item_open" and token.map[0] != starts[-1][0]
        ):
            starts.append((token.map[0], True))
    return starts


def _is_closing(line: str, opening: str) -> bool:
    stripped = line.strip()
    return (
        len(stripped) >= len(opening) and set(stripped) == {opening[0]} and len(line) - len(line.lstrip()) < 4
    )


def _closes(lines: list[str], opening: str) -> bool:
    return any(_is_closing(line, opening) for line in lines[1:])
