"""What `swarm bench swarm` prints of each part: rows of (figure, value), from what it tells as JSON."""

from collections.abc import Callable
from typing import Any

Rows = list[tuple[str, str]]


def _empty(found: Any) -> Rows:
    return [(name.replace("_ms", ""), f"{found[name]} ms") for name in ("p50_ms", "p95_ms", "p99_ms")]


def _overhead(found: Any) -> Rows:
    return [
        ("local", f"{found['local']:.2f} tokens/s"),
        ("one donor", f"{found['remote']:.2f} tokens/s"),
        ("ratio", f"{found['ratio']:.3f}"),
    ]


def _delay(found: Any) -> Rows:
    return [
        (
            f"{one['round_trip_ms']:.0f} ms",
            f"{one['tokens_per_s']:.2f} tokens/s, {one['share']:.2f} of the bound",
        )
        for one in found
    ]


def _hedge(found: Any) -> Rows:
    return [
        (f"hedge {name}", f"p50 {times['p50_ms']} ms, p95 {times['p95_ms']} ms, p99 {times['p99_ms']} ms")
        for name, times in found.items()
    ]


def _drafts(found: Any) -> Rows:
    return [
        (
            f"{one['round_trip_ms']:.0f} ms, {what}",
            f"{one[name]:.2f} tokens/s, {one[f'{name}_without']:.2f} without",
        )
        for one in found
        for what, name in (("repeating", "repeated"), ("not repeating", "other"))
    ]


def _bytes(found: Any) -> Rows:
    rows = [
        (
            f"{name}, {direction}",
            f"{found[name][f'{direction}_bytes_a_token']:,.0f} bytes a token, "
            f"{found[name][f'{direction}_ratio']:.3f} of {found[name][f'{direction}_implied']:,}",
        )
        for name in ("decode", "prefill")
        for direction in ("sent", "received")
    ]
    return [*rows, ("TCP_NODELAY", "at both ends" if found["no_delay"] else "not at both ends")]


def _frozen(found: Any) -> Rows:
    rows: Rows = []
    for one in found:
        back = "not again" if one["back_ms"] is None else f"again after {one['back_ms']:.0f} ms"
        rows += [
            (
                f"hedge {one['hedge']}, lost",
                f"{one['lost_ms']:.0f} ms (deadline {one['deadline_ms']:.0f} ms), slowest token "
                f"{one['worst_ms']:.0f} ms (median {one['stopped_token_ms']:.0f} ms, before {one['token_ms']:.0f} ms)",
            ),
            (
                f"hedge {one['hedge']}, asked",
                f"{one['requests']} requests, {one['requests_later']} after the first token; {back}",
            ),
        ]
    return rows


def _lies(found: Any) -> Rows:
    def calls(one: Any) -> str:
        within = "" if one["within"] else ", not within"
        return f"{one['calls']:.1f} calls, implied {one['implied']:.1f} ± {one['allowed']:.1f}{within}"

    return [
        *((f"one lies in {one['rate']:.0%}", calls(one)) for one in found["one"]),
        ("others accused", f"{found['wrongly_accused']} in {found['seeds'] * len(found['one'])} cases"),
        ("all lie, the first", calls(found["all_first"])),
        ("all lie, the third", calls(found["all_but_one"])),
        ("honest, banned", f"{found['honest_banned']} in {found['honest_calls']:,} calls"),
    ]


def _churn(found: Any) -> Rows:
    return [
        ("joins", f"{found['joins']} of simulated donors"),
        ("without a donor", f"{found['without_route']} experts at most, in {found['looks']} looks"),
        ("not found", f"{found['not_found']} experts at most, in {found['tracker_asked']} questions"),
        ("moved", f"{found['moved_share']:.2%} of assigned experts"),
        (
            f"answers, {found['peers']:,} peers",
            f"p99 {found['slowest_p99_ms']:.1f} ms ({found['slowest_answer']}, the slowest)",
        ),
    ]


ROWS: dict[str, Callable[[Any], Rows]] = {
    "empty": _empty,
    "overhead": _overhead,
    "delay": _delay,
    "hedge": _hedge,
    "drafts": _drafts,
    "bytes": _bytes,
    "frozen": _frozen,
    "lies": _lies,
    "churn": _churn,
}
