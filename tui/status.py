"""What the status line says, from the events of a backend. Pure.

It is honest: it names what is being waited for and how far that is, never a spinner alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from swarm.units import format_bytes, format_count, format_share, plural
from tui.cleaner import clean_line
from tui.messages import Progress
from tui.palette import Palette
from tui.views import ReplyStats, SwarmView

_ABSENT = ("offline", "banned", "left")


@dataclass
class Status:
    """Everything the status line depends on."""

    progress: Progress | None = None
    waiting: Progress | None = None
    """What the work is held up by, where that is known better."""
    stats: ReplyStats = field(default_factory=ReplyStats)
    """Of the running reply, or of the last one."""
    swarm: SwarmView = field(default_factory=SwarmView)
    model: str = ""
    context_used: int = 0
    context_tokens: int = 0
    news: str = ""
    """What just happened; whoever sets it takes it away after a while."""
    problem: str = ""
    """Why nothing can be asked now; empty when it can."""

    def measure(self, stats: ReplyStats) -> None:
        """Newer numbers; a reply that has just begun does not know its context yet."""
        self.stats = stats
        self.context_used = stats.context_tokens or self.context_used

    def left(self, palette: Palette) -> Text:
        """What is going on."""
        if self.news:
            return Text.assemble(("● ", palette.warning), (clean_line(self.news), palette.text))
        if self.progress is not None:
            text = describe(self.waiting or self.progress)
            return Text.assemble(("● ", palette.accent), (join([text, *self._work()]), palette.text))
        if self.problem:
            return Text.assemble(("● ", palette.error), (clean_line(self.problem), palette.text))
        if self.swarm.link == "offline" and self.model:
            return Text.assemble(
                ("● ", palette.warning), ("offline · cached bytes still answer", palette.text)
            )
        if not self.model:
            return Text.assemble(("● ", palette.muted), ("no model", palette.muted))
        done = self._work() if self.stats.reply_tokens else []
        return Text.assemble(("● ", palette.good), (join(["ready", *done]), palette.muted))

    def right(self, room: int) -> str:
        """Where we are, as much of it as there is room for."""
        model = clean_line(self.model, 40)
        network = link(self.swarm) if self.swarm.link != "offline" or self.swarm.peers else ""
        context = ""
        if self.context_tokens:
            context = f"{format_count(self.context_used)}/{format_count(self.context_tokens)}"
        for parts in ([model, network, context], [model, context], [context], [""]):
            if cell_len(text := join(parts)) <= room:
                break
        return text

    def line(self, width: int, palette: Palette) -> Text:
        """Both, on one line; what does not fit is cut, what goes on comes first."""
        left = self.left(palette)
        left.truncate(width, overflow="ellipsis")
        right = Text(self.right(width - left.cell_len - 2), palette.muted)
        space = max(0, width - left.cell_len - right.cell_len)
        return Text.assemble(left, " " * space, right)

    def _work(self) -> list[str]:
        stats = self.stats
        parts = []
        if stats.tokens_per_s:
            parts.append(f"{stats.tokens_per_s:.1f} tok/s")
        if stats.remote_calls:
            parts.append(f"{format_share(stats.remote_share)} by others")
        if stats.hedges:
            parts.append(plural(stats.hedges, "hedge"))
        if stats.failovers:
            parts.append(plural(stats.failovers, "failover"))
        return parts


def join(parts: list[str]) -> str:
    """Parts of a line, with a quiet dot between them."""
    return " · ".join(part for part in parts if part)


def link(swarm: SwarmView) -> str:
    """How we are connected, in a word or two."""
    if swarm.link in ("online", "relayed") and swarm.peers:
        peers = plural(sum(peer.state not in _ABSENT for peer in swarm.peers), "peer")
        return f"{peers}, relayed" if swarm.link == "relayed" else peers
    return swarm.link


def describe(progress: Progress) -> str:
    """fetching 1.2 of 4.0 GB at 92 MB/s; prefill 340/512; compiling kernels."""
    done, total, rate = progress.done, progress.total, progress.rate
    parts = [str(progress.phase)]
    if progress.unit == "B":
        if total:
            parts.append(f"{_same_unit(done, total)} of {format_bytes(total)}")
        elif done:
            parts.append(format_bytes(done))
        if rate:
            parts.append(f"at {format_bytes(rate)}/s")
    elif total:
        parts.append(f"{format_count(done)}/{format_count(total)}")
    if progress.detail:
        parts.append(clean_line(progress.detail, 60))
    return " ".join(parts)


def _same_unit(done: int, total: int) -> str:
    """The first of two sizes without its unit, if both have the same."""
    first, second = format_bytes(done).split(), format_bytes(total).split()
    return first[0] if first[1] == second[1] else " ".join(first)
