"""Markdown to lines of styled text at a width. Pure; knows no widgets.

Text from a model is never markup to anything but this renderer: HTML is shown as it was written, links are
shown with their address and lead nowhere by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from tui.blocks import Block
from tui.highlight import code_lines
from tui.palette import Palette
from tui.tables import Column, layout

Lines = list[Text]
_CONSOLE = Console(file=StringIO(), width=80, color_system=None, force_terminal=False)
_BULLETS = ("•", "◦", "▪")
_NARROWEST = 8
_WIDEST_LANGUAGE = 20
_PLAIN = Style()


@lru_cache(1)
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def wrap(text: Text, width: int) -> Lines:
    """Lines of at most `width` cells."""
    text.expand_tabs(4)
    lines = list(text.wrap(_CONSOLE, max(1, width), overflow="fold")) or [Text()]
    for line in lines:
        line.rstrip()
    return lines


def render_block(block: Block, width: int, palette: Palette) -> Lines:
    """One block as lines, with the blank line before it if it has one."""
    width = max(width, _NARROWEST)
    before = [Text()] if block.gap else []
    if block.code:
        code = _code(block.source, block.info, width, palette, opens=block.opens, closes=block.closes)
        return before + code
    return before + render(block.source, width, palette)


def render(source: str, width: int, palette: Palette) -> Lines:
    """Markdown as lines."""
    tree = SyntaxTreeNode(_parser().parse(source))
    return _Renderer(palette).blocks(tree.children, width)


@dataclass
class _Renderer:
    palette: Palette
    depth: int = field(default=0)

    def blocks(self, nodes: list[SyntaxTreeNode], width: int, *, tight: bool = False) -> Lines:
        lines: Lines = []
        for node in nodes:
            rendered = self._block(node, max(width, _NARROWEST))
            if lines and rendered and not tight:
                lines.append(Text())
            lines += rendered
        return lines

    def _block(self, node: SyntaxTreeNode, width: int) -> Lines:
        match node.type:
            case "paragraph":
                return wrap(self._inline(node), width)
            case "heading":
                return self._heading(node, width)
            case "fence":
                return _code(node.content.rstrip("\n"), node.info, width, self.palette)
            case "code_block":
                return _code(node.content.rstrip("\n"), "", width, self.palette)
            case "bullet_list" | "ordered_list":
                return self._list(node, width)
            case "blockquote":
                return _prefixed(self.blocks(node.children, width - 2), Text("│ ", self.palette.rule))
            case "hr":
                return [Text("─" * width, self.palette.rule)]
            case "table":
                return self._table(node, width)
            case _:
                return wrap(Text(node.content if not node.is_root else ""), width)

    def _heading(self, node: SyntaxTreeNode, width: int) -> Lines:
        text = self._inline(node)
        text.stylize_before(self.palette.heading)
        lines = wrap(text, width)
        if node.tag == "h1":
            lines.append(Text("─" * min(width, max(line.cell_len for line in lines)), self.palette.rule))
        return lines

    def _list(self, node: SyntaxTreeNode, width: int) -> Lines:
        number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
        bullet = _BULLETS[min(self.depth, len(_BULLETS) - 1)]
        last = (number or 0) + len(node.children) - 1
        indent = 2 if number is None else len(str(last)) + 2
        tight = all(_tight(item) for item in node.children)
        lines: Lines = []
        self.depth += 1
        for item in node.children:
            mark = bullet if number is None else f"{number}."
            inner = self.blocks(item.children, width - indent, tight=tight) or [Text()]
            if lines and not tight:
                lines.append(Text())
            lines += _prefixed(inner[:1], Text(mark.ljust(indent), self.palette.accent))
            lines += _prefixed(inner[1:], Text(" " * indent))
            if number is not None:
                number += 1
        self.depth -= 1
        return lines

    def _table(self, node: SyntaxTreeNode, width: int) -> Lines:
        rows = [row for part in node.children for row in part.children]
        columns = [
            Column("", "right" if "right" in str(cell.attrs.get("style", "")) else "left")
            for cell in rows[0].children
        ]
        cells = [[self._inline(cell) for cell in row.children] for row in rows]
        return layout(columns, cells[0], cells[1:], width, self.palette)

    def _inline(self, node: SyntaxTreeNode) -> Text:
        text = Text(style=Style())
        for child in node.children:
            if child.type == "inline" and child.token is not None:
                self._spans(child.token.children or [], text)
        return text

    def _spans(self, tokens: list[Token], text: Text) -> None:
        palette = self.palette
        styles: list[Style] = []
        link = ("", 0)
        for token in tokens:
            style = Style.combine(styles) if styles else _PLAIN
            match token.type:
                case "text" | "html_inline":
                    text.append(token.content, style)
                case "code_inline":
                    text.append(token.content, style + palette.code)
                case "softbreak":
                    text.append(" ", style)
                case "hardbreak":
                    text.append("\n", style)
                case "strong_open":
                    styles.append(palette.strong)
                case "em_open":
                    styles.append(palette.emphasis)
                case "s_open":
                    styles.append(Style(strike=True))
                case "link_open":
                    styles.append(palette.link)
                    link = (str(token.attrs.get("href", "")), len(text))
                case "link_close":
                    styles.pop()
                    address, start = link
                    if address and text.plain[start:] not in (address, address.removeprefix("mailto:")):
                        text.append(f" ({address})", palette.muted)
                case "strong_close" | "em_close" | "s_close":
                    styles.pop()
                case "image":
                    text.append(f"[{token.content or 'image'}] ({token.attrs.get('src', '')})", palette.muted)
                case _:
                    text.append(token.content, style)


def _tight(item: SyntaxTreeNode) -> bool:
    return all(child.token is None and child.nester_tokens is not None and child.nester_tokens.opening.hidden
               for child in item.children if child.type == "paragraph")  # fmt: skip


def _prefixed(lines: Lines, prefix: Text) -> Lines:
    return [Text.assemble(prefix, line) for line in lines]


def _code(
    code: str, info: str, width: int, palette: Palette, *, opens: bool = True, closes: bool = True
) -> Lines:
    """A code block on its own ground, one cell of it on each side, its language in the corner."""
    inner = max(1, width - 2)
    lines: Lines = []
    if opens:
        language = Text(info.split()[0] if info.split() else "", palette.muted)
        language.truncate(min(inner, _WIDEST_LANGUAGE), overflow="ellipsis")
        space = " " * (inner - language.cell_len)
        lines.append(_panel_line(Text.assemble(space, language), width, palette))
    for line in code_lines(code, info, palette):
        line.expand_tabs(4)
        pieces = (
            line.wrap(_CONSOLE, inner, overflow="fold", no_wrap=False) if line.cell_len > inner else [line]
        )
        lines += [_panel_line(piece, width, palette) for piece in pieces]
    if closes:
        lines.append(_panel_line(Text(), width, palette))
    return lines


def _panel_line(line: Text, width: int, palette: Palette) -> Text:
    padding = max(0, width - 1 - cell_len(line.plain))
    panel = Text.assemble(" ", line, " " * padding)
    panel.stylize_before(palette.block)
    return panel
