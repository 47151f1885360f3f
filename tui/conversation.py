"""Conversations, and the files they are kept in.

A conversation is a Markdown file that anyone can read. Each message follows a marker that Markdown does not
show; the first one holds what else is needed to go on:

    <!-- swarm:conversation {"version": 1, "title": "…", "model": "…"} -->

    <!-- swarm:user -->

    the message, verbatim

A line of a message that begins like a marker gets a backslash before it. Reading gives back exactly what was
written. Text in it has been cleaned before it came here, so the file is safe to print.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from swarm.trust.files import write_atomically
from tui.backend import RoleName, Turn
from tui.cleaner import clean, clean_line
from tui.options import Sampling, path_of

_MARKER = re.compile(r"^<!-- swarm:(\w+)(?: (.*))? -->$")
_ESCAPED = re.compile(r"^(\\*)(<!-- swarm:)", re.MULTILINE)
_UNESCAPED = re.compile(r"^\\(\\*<!-- swarm:)", re.MULTILINE)
_ROLES = ("system", "user", "assistant")
_SUFFIX = ".md"


class ConversationError(Exception):
    """A file that is not one of our conversations; the message names it and says what is wrong."""


@dataclass
class Conversation:
    """What was said, and with what."""

    turns: list[Turn] = field(default_factory=list)
    title: str = ""
    model: str = ""
    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def last_reply(self) -> Turn | None:
        """The last answer, if the conversation ends with one."""
        return self.turns[-1] if self.turns and self.turns[-1].role == "assistant" else None

    def prompt(self) -> list[Turn]:
        """What the model is given: the system prompt, if any, and all turns."""
        return ([Turn("system", self.system)] if self.system else []) + self.turns

    def drop_reply(self) -> bool:
        """Take the last answer away; whether a question is left to be answered."""
        while self.turns and self.turns[-1].role == "assistant":
            self.turns.pop()
        return bool(self.turns)

    def take_back(self) -> str | None:
        """Take the last question away, with its answer; its text."""
        if not self.drop_reply():
            return None
        return self.turns.pop().text


def dump(conversation: Conversation) -> str:
    """The conversation as the text of a file."""
    header: dict[str, Any] = {"version": 1, "title": conversation.title, "model": conversation.model}
    if conversation.sampling.chosen():
        header["sampling"] = conversation.sampling.chosen()
    packed = json.dumps(header, ensure_ascii=False).replace(">", "\\u003e")
    parts = [f"<!-- swarm:conversation {packed} -->\n\n"]
    if conversation.system:
        parts.append(_part("system", conversation.system))
    for turn in conversation.turns:
        if turn.reasoning:
            parts.append(_part("reasoning", turn.reasoning))
        parts.append(_part(turn.role, turn.text))
    return "".join(parts)


def parse(text: str, name: str) -> Conversation:
    """The conversation in the text of a file. ConversationError: it is none."""
    lines = text.removesuffix("\n").split("\n")
    found = _MARKER.match(lines[0])
    if not found or found[1] != "conversation":
        raise ConversationError(f"{name} is not a conversation of Swarm: its first line is not our marker.")
    conversation = _header(found[2] or "", name)
    reasoning = ""
    for kind, body in _parts(lines[1:]):
        if kind == "reasoning":
            reasoning = body
        elif kind == "system":
            conversation.system = body
        elif kind in _ROLES:
            conversation.turns.append(Turn(cast(RoleName, kind), body, reasoning))
            reasoning = ""
        else:
            raise ConversationError(f"{name} holds a part {kind!r} that this version does not know.")
    return conversation


def readable(conversation: Conversation) -> str:
    """The conversation as plain text without markers, for people."""
    names = {"user": "You", "assistant": conversation.model or "Reply", "system": "System"}
    return "\n\n".join(f"{names[turn.role]}:\n{turn.text}" for turn in conversation.prompt()) + "\n"


def as_json(conversation: Conversation) -> str:
    """The conversation as JSON, in the shape that chat programs share."""
    messages = []
    for turn in conversation.prompt():
        message = {"role": turn.role, "content": turn.text}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        messages.append(message)
    whole = {"title": conversation.title, "model": conversation.model, "messages": messages}
    return json.dumps(whole, ensure_ascii=False, indent=2) + "\n"


FORMS: Mapping[str, Callable[[Conversation], str]] = {".md": dump, ".json": as_json, ".txt": readable}


def export(conversation: Conversation, path: Path) -> None:
    """Write a conversation where the user wants it; the suffix, one of FORMS, chooses the form. OSError as it comes."""
    path.write_text(FORMS[path.suffix.lower()](conversation), encoding="utf-8")


class Shelf:
    """The directory of saved conversations."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """Names of all saved conversations, the newest first. OSError: they cannot be listed."""
        if not self._directory.is_dir():
            return []
        ages = []
        for path in self._directory.iterdir():
            if path.suffix == _SUFFIX:
                with suppress(FileNotFoundError):  # another chat renamed it just now
                    ages.append((path.stat().st_mtime_ns, path.stem))
        return [name for _, name in sorted(ages, reverse=True)]

    def path(self, name: str) -> Path:
        """Where a conversation of this name lies."""
        return self._directory / (safe_name(name) + _SUFFIX)

    def save(self, name: str, conversation: Conversation) -> Path:
        """Keep a conversation under a name, whole or not at all."""
        path = self.path(name)
        write_atomically(path, dump(conversation).encode())
        return path

    def load(self, name: str) -> Conversation:
        """A saved conversation, by its name or a path. ConversationError: unreadable, or none of ours."""
        path = path_of(name) if "/" in name else self.path(name)
        try:
            text = path.read_bytes().decode("utf-8")
        except FileNotFoundError:
            raise ConversationError(f"There is no saved conversation {clean_line(name)}.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConversationError(f"{path} cannot be read: {error}.") from error
        return parse(clean(text), path.name)

    def new_name(self, now: datetime, title: str) -> str:
        """A name that is not taken, from the date and the title."""
        stem = f"{now:%Y-%m-%d} {safe_name(title)[:40].strip()}".strip()
        taken = set(self.names())
        numbered = (f"{stem} {number}" for number in range(2, 10_000))
        return stem if stem not in taken else next(name for name in numbered if name not in taken)


def safe_name(name: str) -> str:
    """A file name, of any text: no separators, no leading dot, never empty, at most 80 characters."""
    line = re.sub(r'[/\\:*?"<>|]+', "-", clean_line(name, 80)).strip(" .-")
    encoded = line.encode("utf-8")[:200].decode("utf-8", "ignore")
    return encoded or "conversation"


def title_of(text: str) -> str:
    """A title, from the first words of the first message."""
    line = clean_line(text, 60)
    return line if len(line) <= 48 else line[:48].rpartition(" ")[0] or line[:48]


def _part(kind: str, body: str) -> str:
    escaped = _ESCAPED.sub(r"\1\\\2", body)
    return f"<!-- swarm:{kind} -->\n\n{escaped}\n\n"


def _parts(lines: list[str]) -> Iterable[tuple[str, str]]:
    kind, body = "", list[str]()
    for line in lines:
        found = _MARKER.match(line)
        if found:
            if kind:
                yield kind, _body(body)
            kind, body = found[1], []
        else:
            body.append(line)
    if kind:
        yield kind, _body(body)


def _body(lines: list[str]) -> str:
    """Without the blank line that we wrote before and after it, if they are still there."""
    first = 1 if lines and not lines[0] else 0
    last = len(lines) - 1 if len(lines) > first and not lines[-1] else len(lines)
    return _UNESCAPED.sub(r"\1", "\n".join(lines[first:last]))


def _header(packed: str, name: str) -> Conversation:
    try:
        header = json.loads(packed)
        if header["version"] != 1:
            raise ConversationError(f"{name} was written by a later version of Swarm; update to read it.")
        sampling = Sampling(**header.get("sampling", {}))
        return Conversation([], str(header["title"]), str(header["model"]), "", sampling)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConversationError(
            f"{name} is damaged: its first line cannot be understood ({error})."
        ) from error
