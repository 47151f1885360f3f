"""A text cut into blocks while it grows gives what the whole text gives."""

from __future__ import annotations

import random

import pytest

from tui.blocks import Block, Splitter, split
from tui.markdown import render_block
from tui.palette import DARK

TEXT = """# Title

A paragraph of
two lines.

1. one
   - nested
   - more
2. two

   with a second paragraph
3. three

- tight
- list

> quote
> more

```python
def f():

    return 1
```

| a | b |
|---|--:|
| 1 | 2 |

Setext
------

***

<b>html</b>

    indented code

The end."""


def shown(blocks: list[Block], width: int = 60) -> list[str]:
    return [line.plain.rstrip() for block in blocks for line in render_block(block, width, DARK)]


def stream(text: str, sizes: list[int]) -> list[Block]:
    splitter, blocks, at = Splitter(), [], 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        blocks += splitter.feed(text[at : at + size])
        splitter.tail()
        at += size
    return blocks + splitter.finish()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 10_000])
def test_pieces_of_any_size_show_the_same(size: int) -> None:
    assert shown(stream(TEXT, [size])) == shown(split(TEXT))


def test_random_pieces_show_the_same() -> None:
    luck = random.Random(3)
    for _ in range(20):
        sizes = [luck.randint(1, 30) for _ in range(50)]
        assert shown(stream(TEXT, sizes)) == shown(split(TEXT))


def test_the_tail_shows_what_is_not_complete_yet() -> None:
    splitter = Splitter()
    done = splitter.feed("First.\n\nSecond, not")
    assert [block.source for block in done] == ["First."]
    assert [block.source for block in splitter.tail()] == ["Second, not"]
    assert [block.source for block in splitter.finish()] == ["Second, not"]
    assert splitter.tail() == []


def test_items_of_a_list_are_cut_one_by_one() -> None:
    splitter = Splitter()
    done = splitter.feed("1. one\n2. two\n3. thr")
    assert [block.source for block in done] == ["1. one", "2. two"]
    assert [block.gap for block in done] == [False, False]
    assert splitter.tail() == [Block("3. thr", gap=False)]


def test_a_long_code_block_is_cut_and_shows_every_line_once() -> None:
    code = "\n".join(f"line_{at} = {at}" + ("\n" if at % 9 == 0 else "") for at in range(300))
    text = f"Look:\n\n```python\n{code}\n```\n\nDone."
    blocks = stream(text, [13])
    assert max(block.source.count("\n") for block in blocks) < 100
    assert [block.code for block in blocks].count(True) > 3
    assert shown(blocks) == shown(split(text))


def test_an_open_code_block_at_the_end_is_shown() -> None:
    text = "```\n" + "\n".join(f"row {at}" for at in range(100))
    assert [line for line in shown(stream(text, [11])) if line.strip()] == [f" row {at}" for at in range(100)]


def test_a_growing_text_costs_only_its_tail() -> None:
    splitter = Splitter()
    for at in range(500):
        splitter.feed(f"Paragraph {at} says little.\n\n")
        assert sum(len(block.source) for block in splitter.tail()) < 60


def test_nothing_comes_of_nothing() -> None:
    assert split("") == []
    assert split("\n\n\n") == []
    assert Splitter().tail() == []
