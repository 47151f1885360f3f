"""Slash commands: what there is, how a line is parsed, how it is completed. Pure; the doing is elsewhere.

A line is a command when it begins with one slash and a word of letters. Two slashes send the rest as a
message that begins with one slash; a path such as `/etc/hosts` is a message.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.units import parse_bytes
from tui.options import Sampling


@dataclass(frozen=True)
class Command:
    """One slash command."""

    name: str
    summary: str
    usage: str = ""
    """Arguments, as help shows them."""
    values: str = ""
    """What completes its argument: the name of a list (models, settings …), or the words themselves."""


COMMANDS: tuple[Command, ...] = (
    Command("help", "keys and commands", "[COMMAND]", "commands"),
    Command("model", "models of the swarm; switch to another", "[NAME]", "models"),
    Command("swarm", "the network live: peers, holdings, bans, your share"),
    Command("donate", "lend disk, compute or both; pause, resume, stop",
            "[KIND SIZE | pause | resume | off]",
            "disk compute both pause resume off"),
    Command("set", "sampling and network settings", "[NAME [VALUE]]", "settings"),
    Command("system", "show or change the system prompt", "[TEXT | off]", "off"),
    Command("new", "begin another conversation"),
    Command("load", "reopen a saved conversation", "[NAME]", "conversations"),
    Command("save", "name this conversation", "[NAME]"),
    Command("export", "write this conversation as .md, .json or .txt", "FILE"),
    Command("retry", "answer the last question again"),
    Command("edit", "take the last question back into the editor"),
    Command("copy", "copy the last reply, its last code block, or everything", "[code | all]", "code all"),
    Command("find", "search this conversation", "TEXT"),
    Command("stats", "the last reply in numbers"),
    Command("quit", "leave"),
)  # fmt: skip
BY_NAME: Mapping[str, Command] = {command.name: command for command in COMMANDS}
ALIASES: Mapping[str, str] = {
    "?": "help",
    "clear": "new",
    "exit": "quit",
    "models": "model",
    "peers": "swarm",
    "q": "quit",
    "regenerate": "retry",
    "search": "find",
}

SAMPLING: Mapping[str, str] = {
    "temperature": "0 is greedy, 1 the model's own distribution",
    "top-p": "keep the likeliest tokens that add up to this share",
    "top-k": "keep this many of the likeliest tokens",
    "min-p": "drop tokens less likely than this share of the likeliest",
    "repeat-penalty": "1 is none",
    "seed": "same seed, same reply",
    "max-tokens": "longest reply",
}
NETWORK: Mapping[str, str] = {
    "hedge": "ask a second donor after: auto, off, or milliseconds",
    "audit": "share of remote calls recomputed, as 5% or 0.05",
    "drafts": "have donors compute tokens that repeat earlier text along with the newest: on or off",
    "expert-ram": "memory for experts on this machine, as 8GB",
}
DISPLAY: Mapping[str, str] = {
    "theme": "dark, light or terminal",
    "reasoning": "folded or shown",
    "mouse": "on or off, from the next start",
}
SETTINGS: Mapping[str, str] = {**SAMPLING, **NETWORK, **DISPLAY}
SETTING_VALUES: Mapping[str, tuple[str, ...]] = {
    "hedge": ("auto", "off"),
    "drafts": ("on", "off"),
    "theme": ("dark", "light", "terminal"),
    "reasoning": ("folded", "shown"),
    "mouse": ("on", "off"),
}
_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?:\s+(.*))?\Z", re.DOTALL)
_LIMITS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 10.0),
    "top-p": (0.0, 1.0),
    "top-k": (0, 1_000_000),
    "min-p": (0.0, 1.0),
    "repeat-penalty": (0.01, 10.0),
    "seed": (0, 2**63 - 1),
    "max-tokens": (1, 10_000_000),
}
_WHOLE = frozenset({"top-k", "seed", "max-tokens"})


class CommandError(Exception):
    """A command that cannot be carried out; the message says why and what to write instead."""


@dataclass(frozen=True)
class Invocation:
    """A parsed command."""

    name: str
    argument: str = ""

    @property
    def words(self) -> list[str]:
        """The argument, split at white space."""
        return self.argument.split()


def parse(line: str) -> Invocation | str:
    """A command, or the message to send. CommandError: an unknown command."""
    text = line.strip()
    if text.startswith("//"):
        return text[1:]
    found = _COMMAND.fullmatch(text)
    if not found:
        return text
    name = found[1].lower()
    name = ALIASES.get(name, name)
    if name not in BY_NAME:
        near = difflib.get_close_matches(name, [*BY_NAME, *ALIASES], n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them."
        raise CommandError(f"There is no command /{name}; {hint} (//{name} … sends it as a message.)")
    return Invocation(name, (found[2] or "").strip())


def setting_name(word: str) -> str:
    """The setting that a word means. CommandError: none."""
    name = word.lower().replace("_", "-")
    if name in SETTINGS:
        return name
    starting = [known for known in SETTINGS if known.startswith(name)]
    if name and len(starting) == 1:
        return starting[0]
    raise CommandError(f"There is no setting {word}; there are {', '.join(SETTINGS)}.")


def sampling_value(name: str, text: str) -> float | int | None:
    """A sampling setting's value; None for "default". CommandError: not a number, or out of bounds."""
    if text.lower() in ("default", "off", "none", "auto"):
        return None
    low, high = _LIMITS[name]
    try:
        value: float | int = int(text) if name in _WHOLE else float(text)
    except ValueError:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise CommandError(f"{name} wants {kind}, not {text}.") from None
    if not low <= value <= high:
        raise CommandError(f"{name} lies between {low:g} and {high:g}; {text} does not.")
    return value


def with_setting(sampling: Sampling, name: str, text: str) -> Sampling:
    """The sampling with one setting changed, by its name in `SAMPLING`."""
    values = sampling.chosen()
    value = sampling_value(name, text)
    values.pop(name.replace("-", "_"), None)
    if value is not None:
        values[name.replace("-", "_")] = value
    return Sampling(**values)  # type: ignore[arg-type]


def size_value(text: str) -> int:
    """A size in bytes. CommandError: not a size."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise CommandError(str(error) + ".") from None


@dataclass(frozen=True)
class Candidate:
    """A completion: the whole line it would make, and what it means."""

    line: str
    label: str
    summary: str


def complete(line: str, known: Mapping[str, Sequence[str]]) -> list[Candidate]:
    """Completions of a line that begins with a slash; `known` gives the lists named in `Command.values`."""
    if not line.startswith("/") or line.startswith("//") or "\n" in line:
        return []
    head, space, tail = line.partition(" ")
    if not space:
        typed = head[1:].lower()
        return [
            Candidate(
                f"/{command.name}" + (" " if command.usage else ""), f"/{command.name}", command.summary
            )
            for command in COMMANDS
            if command.name.startswith(typed)
        ]
    name = head[1:].lower()
    command = BY_NAME.get(ALIASES.get(name, name))
    if command is None or not command.values:
        return []
    if command.name == "set" and " " in tail:
        setting, _, value = tail.partition(" ")
        choices = SETTING_VALUES.get(setting, ())
        return [
            Candidate(f"{head} {setting} {choice}", choice, "")
            for choice in choices
            if choice.startswith(value)
        ]
    return [Candidate(f"{head} {value}", value, summary) for value, summary in _values(command, known)
            if value.lower().startswith(tail.lower()) and value != tail]  # fmt: skip


def _values(command: Command, known: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    if command.values == "settings":
        return [(name + " ", summary) for name, summary in SETTINGS.items()]
    if command.values == "commands":
        return [(item.name, item.summary) for item in COMMANDS]
    if command.values in known:
        return [(value, "") for value in known[command.values]]
    if command.values in ("models", "conversations"):
        return []
    return [(value, "") for value in command.values.split()]
