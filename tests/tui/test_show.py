"""What the status line, reports, tables, heat maps and quantities say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from swarm.units import format_bytes, format_ms, format_seconds, format_share, parse_bytes, plural
from tests.tui.fakes import HOLES, MODELS, STATS, demo_swarm
from tests.tui.harmless import harmless
from tui import heatmap, report
from tui.machine import Machine, measure
from tui.messages import Phase, Progress
from tui.options import Sampling
from tui.palette import DARK
from tui.status import Status, describe, link
from tui.tables import Column, choose, fit, layout, plain
from tui.views import Ban, DonationView, PeerView, ReplyStats, Role, SwarmView


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (
            Progress(Phase.FETCHING, 1_200_000_000, 4_000_000_000, "B", 92_000_000),
            "fetching 1.2 of 4.0 GB at 92.0 MB/s",
        ),
        (Progress(Phase.FETCHING, 12_000_000, 4_000_000_000, "B"), "fetching 12.0 MB of 4.0 GB"),
        (Progress(Phase.FETCHING, 12_000_000, 0, "B"), "fetching 12.0 MB"),
        (Progress(Phase.PREFILL, 340, 512, "tokens"), "prefill 340/512"),
        (Progress(Phase.COMPILING), "compiling kernels"),
        (Progress(Phase.CONNECTING, detail="a\x1b[2Jb"), "connecting a␛[2Jb"),
    ],
)
def test_progress_in_words(progress: Progress, said: str) -> None:
    assert describe(progress) == said


def test_the_status_line_says_what_is_waited_for() -> None:
    status = Status(model="olmoe", context_tokens=4096)
    status.measure(replace(STATS, failovers=2))
    status.swarm = demo_swarm()
    line = status.line(120, DARK).plain
    assert line.startswith("● ready · 18.1 tok/s · 75 % by others · 2 hedges · 2 failovers")
    assert line.endswith("olmoe · 3 peers · 176/4,096")
    status.progress = Progress(Phase.PREFILL, 340, 512)
    assert status.line(120, DARK).plain.startswith("● prefill 340/512 · 18.1 tok/s")
    status.progress = None
    status.problem = "The tracker does not answer."
    assert status.line(120, DARK).plain.startswith("● The tracker does not answer.")


def test_the_status_line_is_honest_offline_and_without_a_model() -> None:
    assert "no model" in Status().line(60, DARK).plain
    assert "offline" in Status(model="x").line(60, DARK).plain


@pytest.mark.parametrize("width", [1, 5, 20, 40, 79])
def test_the_status_line_fits(width: int) -> None:
    status = Status(model="a-very-long-model-name", context_tokens=4096, stats=STATS, swarm=demo_swarm())
    assert status.line(width, DARK).cell_len <= width


def test_links_in_words() -> None:
    assert link(SwarmView(link="local")) == "local"
    assert link(replace(demo_swarm(), link="relayed")) == "3 peers, relayed"
    assert link(SwarmView()) == "offline"
    gone = tuple(PeerView(1, Role.COMPUTE, state=state) for state in ("ok", "left", "offline", "banned"))
    assert link(SwarmView(link="online", peers=gone)) == "1 peer"


def test_peers_are_numbered_and_what_they_say_of_themselves_is_cleaned() -> None:
    evil = PeerView(1, Role.COMPUTE, held="\x1b]0;x\x07[b]all[/b]", state="ok\u202e")
    table = report.peers(SwarmView(peers=(evil,)))
    assert table.rows[0][0] == "1"
    assert all(harmless(cell) for cell in table.rows[0])
    assert "[b]all[/b]" in table.rows[0][4]


def test_models_say_what_is_missing_and_what_a_switch_fetches() -> None:
    rows = report.models(
        (*MODELS, replace(HOLES, missing=("a", "b", "c", "d", "e")), replace(HOLES, supported=False))
    ).rows
    assert rows[0][0] == "●"
    assert [row[5] for row in rows] == [
        "complete",
        "complete",
        "missing layer 3, layer 17",
        "missing a, b, c and 2 more",
        "this version cannot run it",
    ]
    assert rows[0][6] == "700 MB"
    assert report.models((replace(HOLES, fetched_bytes=HOLES.needed_bytes),)).rows[0][6] == "nothing"


def test_coverage_bans_and_donation_in_words() -> None:
    assert report.coverage(demo_swarm()).endswith("1 run by no donor, so here")
    assert (
        report.coverage(SwarmView(experts=((1, 2),)))
        == "2 experts in 1 layers · 1.5 replicas each · complete"
    )
    assert report.coverage(SwarmView()) == ""
    assert report.bans(SwarmView(bans=(Ban(3, "lied\x07"),))).rows == [["3", "lied␇"]]
    assert "lends nothing" in report.donation(DonationView())
    said = report.donation(DonationView("both", "paused", 2_000_000_000, 1_000_000_000, 12, 3_000))
    assert said == "Lending 2.0 GB of disk and 1.0 GB of memory · paused · 12 calls answered · 3.0 kB served"


def test_stats_and_footer() -> None:
    rows = dict(report.stats(STATS).rows)
    assert rows["prefill"] == "28 tokens in 0.4 s, 70.0 a second"
    assert rows["bytes"] == "52.0 MB down, 21.0 MB up; 333 kB and 135 kB a token"
    assert report.stats(ReplyStats()).rows == []
    assert "experts" not in dict(report.stats(ReplyStats(prompt_tokens=3)).rows)
    assert not {"memory", "drafts"} & set(rows)
    drafted = ReplyStats(reply_tokens=3, guessed_tokens=12, guessed_right=9)
    assert dict(report.stats(drafted).rows)["drafts"] == "12 tokens, 9 of them right"
    streamed = ReplyStats(
        prompt_tokens=3, expert_hits=9, expert_misses=1, expert_bytes=2_000_000, expert_wait_s=0.5
    )
    told = dict(report.stats(streamed).rows)["memory"]
    assert told == "90 % of the experts used here were in it; 2.0 MB read, 0.5 s waited for them"
    assert report.footer(STATS, "end") == "128 tokens · 18.1 tok/s · 75 % by others"
    assert report.footer(ReplyStats(), "stopped") == "stopped"


def test_settings_show_values_and_defaults() -> None:
    rows = {row[0]: row[1] for row in report.settings(Sampling(top_p=0.9), {"hedge": "auto"}).rows}
    assert (rows["top-p"], rows["seed"], rows["hedge"], rows["theme"]) == ("0.9", "default", "auto", "")


def test_tables_align_cut_and_leave_out() -> None:
    columns = (Column("a"), Column("bb", "right"), Column("spare", spare=1))
    rows = [["x", "1", "y"], ["long", "22", "z"]]
    assert plain(columns, rows) == ["a     bb  spare", "x      1  y", "long  22  z"]
    assert choose(columns, rows, 15) == [0, 1, 2]
    assert choose(columns, rows, 10) == [0, 1]
    assert choose(columns, rows, 1) == [0, 1]
    cells = [[Text(cell) for cell in row] for row in rows]
    lines = [line.plain for line in layout(columns, [Text(c.name) for c in columns], cells, 40, DARK)]
    assert lines[2] == "x      1  y    "


@pytest.mark.parametrize(
    ("wanted", "room", "widths"),
    [
        ([3, 3], 10, [3, 3]),
        ([10, 3], 10, [7, 3]),
        ([9, 9, 2], 12, [5, 5, 2]),
        ([4, 4], 1, [4, 4]),
        ([0], 5, [1]),
    ],
)
def test_widths_shrink_from_the_widest(wanted: list[int], room: int, widths: list[int]) -> None:
    assert fit(wanted, room) == widths


def test_a_heat_map_never_hides_a_hole() -> None:
    counts = [[2] * 64 for _ in range(20)]
    counts[13][37] = 0
    for width, height in ((80, 20), (20, 20), (80, 4), (12, 2)):
        lines = heatmap.experts(counts, width, height, DARK)
        assert len(lines) == min(20, height)
        assert sum(line.plain.count("·") for line in lines) == 1
        assert max(line.cell_len for line in lines) <= width
    assert heatmap.experts([], 80, 20, DARK) == []


def test_ranges_and_legend() -> None:
    assert heatmap.ranges((0, 1, 2, 9), 4, DARK).plain == "·░▒█"
    assert heatmap.ranges((1, 0, 2, 2), 2, DARK).plain == "·▒"
    assert heatmap.ranges((), 5, DARK).plain == ""
    assert "4+" in heatmap.legend(DARK).plain


def test_quantities() -> None:
    assert [format_bytes(n) for n in (0, 999, 1000, 99_949, 99_960, 1.5e12)] == [
        "0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "1.5 TB"]  # fmt: skip
    assert [parse_bytes(text) for text in ("7", "1 kB", "2.5mb", "1GiB")] == [7, 1000, 2_500_000, 1 << 30]
    assert [format_seconds(s) for s in (0.04, 9.94, 42, 200, 7500)] == [
        "0.0 s", "9.9 s", "42 s", "3 min 20 s", "2 h 5 min"]  # fmt: skip
    assert [format_ms(ms) for ms in (None, 0.42, 12.4)] == ["–", "0.4 ms", "12 ms"]
    assert [format_share(share) for share in (0.0, 0.5, 0.999, 1.0)] == ["0 %", "50 %", "99 %", "100 %"]
    assert [plural(1, "peer"), plural(2, "peer")] == ["1 peer", "2 peers"]


def test_a_machine_keeps_most_for_itself() -> None:
    machine = Machine(100 * 10**9, 16 * 10**9)
    assert (machine.disk_offer, machine.ram_offer) == (20 * 10**9, 4 * 10**9)
    assert Machine(10**9, 2 * 10**9).ram_offer == 0
    assert Machine(10**15, 10**13).disk_offer == 200 * 10**9
    assert measure(Path("/no/such/place")).free_disk_bytes > 0
