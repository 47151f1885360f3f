"""What `/swarm`, `/model`, `/stats`, `/set` and `/help` say, as plain tables for both interfaces. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.units import format_bytes, format_count, format_ms, format_seconds, format_share, plural
from tui.cleaner import clean_line
from tui.commands import COMMANDS, DISPLAY, NETWORK, SAMPLING, Command
from tui.options import Sampling
from tui.tables import Column
from tui.views import DonationView, ModelView, PeerView, ReplyStats, SwarmView


@dataclass(frozen=True)
class Table:
    """A table with a title; a table of one unnamed column is a list."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: str = ""
    """What is said when there are no rows."""


def peers(swarm: SwarmView) -> Table:
    """The peers, numbered, never named."""
    columns = (
        Column("#", "right"), Column("role"), Column("rtt", "right", 1),
        Column("service", "right", 3),
        Column("holds"), Column("calls", "right"), Column("down", "right", 2),
        Column("up", "right", 5),
        Column("state"),
    )  # fmt: skip
    rows = [_peer(peer) for peer in swarm.peers]
    return Table("Peers", columns, rows, "No peers: everything runs on this machine.")


def _peer(peer: PeerView) -> list[str]:
    return [
        str(peer.number),
        f"{peer.role}, relayed" if peer.relayed else str(peer.role),
        format_ms(peer.rtt_ms),
        format_ms(peer.service_ms),
        clean_line(peer.held, 40) or "–",
        format_count(peer.calls),
        format_bytes(peer.bytes_down),
        format_bytes(peer.bytes_up),
        clean_line(peer.state, 20),
    ]


def coverage(swarm: SwarmView) -> str:
    """How well donors cover the experts, in a sentence; what none of them runs, this machine does."""
    cells = [count for layer in swarm.experts for count in layer]
    if not cells:
        return ""
    missing = sum(count == 0 for count in cells)
    mean = sum(cells) / len(cells)
    size = f"{format_count(len(cells))} experts in {len(swarm.experts)} layers"
    if missing == len(cells):
        return f"{size} · no donor runs any; they run here"
    whole = "complete" if not missing else f"{format_count(missing)} run by no donor, so here"
    return f"{size} · {mean:.1f} replicas each · {whole}"


def bans(swarm: SwarmView) -> Table:
    """Who is left out, and why."""
    rows = [[str(ban.peer), clean_line(ban.reason, 200)] for ban in swarm.bans]
    return Table("Left out", (Column("#", "right"), Column("reason")), rows, "Nobody is banned.")


def donation(view: DonationView) -> str:
    """What this machine lends, in a sentence."""
    if not view.kind:
        return "This machine lends nothing. /donate disk 20GB or /donate compute 8GB changes that."
    lent = []
    if view.disk_bytes:
        lent.append(f"{format_bytes(view.disk_bytes)} of disk")
    if view.ram_bytes:
        lent.append(f"{format_bytes(view.ram_bytes)} of memory")
    served = [f"{format_count(view.served_calls)} calls answered"] if view.served_calls else []
    served += [f"{format_bytes(view.served_bytes)} served"] if view.served_bytes else []
    parts = [f"Lending {' and '.join(lent) or view.kind}", view.state, *served, clean_line(view.detail, 100)]
    return " · ".join(part for part in parts if part)


def models(listed: Sequence[ModelView]) -> Table:
    """All models of the swarm."""
    columns = (
        Column(""), Column("model"), Column("family", spare=2), Column("format", spare=1),
        Column("size", "right"),
        Column("coverage"), Column("to fetch", "right"),
    )  # fmt: skip
    return Table("Models", columns, [_model(model) for model in listed], "This swarm serves no model.")


def greeting(model: ModelView, context_tokens: int, help_: str = "F1 lists keys and commands") -> str:
    """What is said when a model is open, and how to find out more."""
    facts = [model.format, format_bytes(model.size_bytes) if model.size_bytes else ""]
    about = ", ".join(clean_line(fact, 20) for fact in facts if fact)
    name = clean_line(model.name, 60) + (f" ({about})" if about else "")
    context = format_count(context_tokens)
    return f"{name} answers, with a context of {context} tokens. {help_}."


SHORTER = "/new begins another conversation, /edit asks shorter"
"""What helps when a conversation does not fit the model's context."""


def to_fetch(model: ModelView) -> str:
    """What opening a model would fetch."""
    fetch = model.to_fetch_bytes
    if fetch is None:
        return "what it reads"
    return format_bytes(fetch) if fetch else "nothing"


def _model(model: ModelView) -> list[str]:
    whole = "complete" if not model.missing else "missing " + ", ".join(model.missing[:3])
    if len(model.missing) > 3:
        whole += f" and {len(model.missing) - 3} more"
    if not model.supported:
        whole = "this version cannot run it"
    return [
        "●" if model.open else "",
        clean_line(model.name, 60),
        clean_line(model.family, 20),
        clean_line(model.format, 20),
        format_bytes(model.size_bytes),
        clean_line(whole, 80),
        to_fetch(model),
    ]


def stats(reply: ReplyStats) -> Table:
    """A reply in numbers."""
    rows = [
        [
            "prompt",
            f"{format_count(reply.prompt_tokens)} tokens, {format_count(reply.cached_tokens)} of them kept",
        ],
        ["prefill", _pace(reply.prompt_tokens - reply.cached_tokens, reply.prefill_s)],
        ["reply", _reply(reply)],
        ["context", f"{format_count(reply.context_tokens)} tokens"],
    ]
    calls = reply.remote_calls + reply.local_calls
    if calls:
        rows += [
            ["experts", f"{format_count(calls)} calls, {format_share(reply.remote_share)} by others"],
            ["waited", f"{format_seconds(reply.waited_s)} for the slowest donor"],
            ["hedges", f"{format_count(reply.hedges)}, {format_count(reply.hedges_won)} of them won"],
            ["failovers", format_count(reply.failovers)],
            ["audits", plural(reply.audits, "answer")],
            ["bytes", _bytes(reply)],
        ]
    if reply.guessed_tokens:
        right = f"{format_count(reply.guessed_right)} of them right"
        rows.append(["drafts", f"{plural(reply.guessed_tokens, 'token')}, {right}"])
    if reply.expert_hits or reply.expert_misses:
        rows.append(["memory", _memory(reply)])
    rows = rows if reply.prompt_tokens or reply.reply_tokens else []
    return Table("Last reply", (Column(""), Column("")), rows, "Nothing was answered yet.")


def _pace(tokens: int, seconds: float) -> str:
    speed = f", {tokens / seconds:.1f} a second" if seconds > 0 else ""
    return f"{format_count(tokens)} tokens in {format_seconds(seconds)}{speed}"


def _reply(reply: ReplyStats) -> str:
    speed = f", {reply.tokens_per_s:.1f} a second" if reply.tokens_per_s else ""
    return f"{format_count(reply.reply_tokens)} tokens in {format_seconds(reply.decode_s)}{speed}"


def _memory(reply: ReplyStats) -> str:
    share = format_share(reply.expert_hits / (reply.expert_hits + reply.expert_misses))
    read = f"{format_bytes(reply.expert_bytes)} read, {format_seconds(reply.expert_wait_s)} waited for them"
    return f"{share} of the experts used here were in it; {read}"


def _bytes(reply: ReplyStats) -> str:
    text = f"{format_bytes(reply.bytes_down)} down, {format_bytes(reply.bytes_up)} up"
    tokens = reply.reply_tokens + reply.prompt_tokens - reply.cached_tokens
    if tokens <= 0:
        return text
    each = f"{format_bytes(reply.bytes_down / tokens)} and {format_bytes(reply.bytes_up / tokens)}"
    return f"{text}; {each} a token"


def settings(sampling: Sampling, others: dict[str, str]) -> Table:
    """Every setting, its value, what it means."""
    chosen = sampling.chosen()
    rows = []
    for name, meaning in {**SAMPLING, **NETWORK, **DISPLAY}.items():
        value = chosen.get(name.replace("-", "_")) if name in SAMPLING else others.get(name, "")
        rows.append([name, "default" if value is None else str(value), meaning])
    return Table("Settings", (Column("setting"), Column("value"), Column("")), rows)


KEYS: Sequence[tuple[str, str]] = (
    ("Enter", "send"),
    ("Ctrl-J, Alt-Enter, Shift-Enter", "new line"),
    ("Esc, Ctrl-C", "stop the reply and keep it"),
    ("Up, Down", "earlier and later messages, from the first and last line"),
    ("Tab", "complete a command"),
    ("PageUp, PageDown, wheel", "scroll"),
    ("Ctrl-R", "answer the last question again"),
    ("Ctrl-E", "take the last question back and edit it"),
    ("Ctrl-T", "show or fold reasoning"),
    ("Ctrl-F", "search; Enter and Shift-Enter go through the places"),
    ("Ctrl-Y", "copy the last reply; mouse selection: Ctrl-C copies"),
    ("Ctrl-O", "conversations"),
    ("Ctrl-N", "new conversation"),
    ("Ctrl-P", "command palette"),
    ("Ctrl-Z", "to the shell and back with fg; Ctrl-_ undoes"),
    ("Ctrl-Q", "leave; with nothing written, Ctrl-D too"),
)


def help_tables(
    topic: str = "",
    commands: Sequence[Command] = COMMANDS,
    keys: Sequence[tuple[str, str]] = KEYS,
) -> list[Table]:
    """Commands and keys; or one command."""
    if topic:
        return [_commands("", [command for command in commands if command.name == topic])]
    return [
        _commands("Commands", commands),
        Table("Keys", (Column(""), Column("")), [list(key) for key in keys]),
    ]


def _commands(title: str, listed: Sequence[Command]) -> Table:
    rows = [[f"/{command.name} {command.usage}".strip(), command.summary] for command in listed]
    return Table(title, (Column(""), Column("")), rows)


def footer(reply: ReplyStats, reason: str) -> str:
    """The quiet line under a reply."""
    parts = [] if reason == "end" else [reason]
    if reply.reply_tokens:
        parts.append(f"{format_count(reply.reply_tokens)} tokens")
    if reply.tokens_per_s:
        parts.append(f"{reply.tokens_per_s:.1f} tok/s")
    if reply.remote_calls:
        parts.append(f"{format_share(reply.remote_share)} by others")
    return " · ".join(parts)
