"""Who holds what, drawn: layers × experts, and byte ranges. Pure.

When there are more experts than room, a cell stands for several and shows the one that fewest hold, for a
hole is what matters. Without colour the shapes still tell: a dot is run by no donor, then ░ ▒ ▓ █.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.style import Style
from rich.text import Text

from tui.palette import Palette

_SHADES = "·░▒▓█"


def experts(counts: Sequence[Sequence[int]], width: int, height: int, palette: Palette) -> list[Text]:
    """Replicas of each expert, counts[layer][expert], as at most `height` lines of a layer or several."""
    layers = len(counts)
    if not layers or not counts[0]:
        return []
    label = len(str(layers - 1)) + 2
    columns = max(1, min(len(counts[0]), width - label))
    rows = max(1, min(layers, height))
    lines = []
    for row in range(rows):
        first, last = row * layers // rows, max((row + 1) * layers // rows, row * layers // rows + 1)
        merged = [min(column) for column in zip(*counts[first:last], strict=True)]
        line = Text(f"{first:>{label - 2}}  ", palette.muted)
        for value in buckets(merged, columns):
            line.append(_SHADES[min(value, len(_SHADES) - 1)], _heat(value, palette))
        lines.append(line)
    return lines


def buckets(values: Sequence[int], count: int) -> list[int]:
    """The least value of each of `count` equal parts."""
    size = len(values)
    bounds = [at * size // count for at in range(count + 1)]
    return [min(values[low : max(high, low + 1)]) for low, high in pairwise(bounds)]


def ranges(replicas: Sequence[float], width: int, palette: Palette) -> Text:
    """Byte ranges of the checkpoint from its beginning to its end, as one line."""
    line = Text()
    if replicas and width > 0:
        columns = min(len(replicas), width)
        for value in buckets([int(item) for item in replicas], columns):
            line.append(_SHADES[min(value, len(_SHADES) - 1)], _heat(value, palette))
    return line


def legend(palette: Palette) -> Text:
    """What the shades mean."""
    line = Text("replicas  ", palette.muted)
    for value, shade in enumerate(_SHADES):
        more = "+" if value == len(_SHADES) - 1 else ""
        line.append(f"{shade}", _heat(value, palette))
        line.append(f" {value}{more}  ", palette.muted)
    return line


def _heat(value: int, palette: Palette) -> Style:
    """Nothing held is a warning; more is calmer."""
    if value == 0:
        return palette.error
    return palette.heat[min(value + 1, len(palette.heat) - 1)]
