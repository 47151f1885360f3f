"""What each slash command does, for every user interface: knows conversations and backends, no widgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from swarm.system import words_of_system
from tui import report
from tui.backend import Ask, Backend, Donation, Turn
from tui.cleaner import clean, clean_line
from tui.commands import (
    ALIASES,
    BY_NAME,
    DISPLAY,
    NETWORK,
    SETTING_VALUES,
    CommandError,
    Invocation,
    parse,
    setting_name,
    size_value,
    with_setting,
)
from tui.conversation import FORMS, Conversation, ConversationError, Shelf, export, safe_name, title_of
from tui.options import Options, path_of
from tui.preferences import Preferences, keep
from tui.problems import explain
from tui.view import View
from tui.views import DonationView, ModelView, ReplyStats


class Controller:
    """One conversation at a time, and everything a user can do to it."""

    def __init__(self, options: Options, view: View, preferences: Preferences) -> None:
        self.options = options
        self.preferences = preferences
        self.shelf = Shelf(options.home / "conversations")
        self.conversation = Conversation(system=options.system or "", sampling=options.sampling)
        self.name = ""
        self.model = ""
        self.known_models: Sequence[ModelView] = ()
        self.stats = ReplyStats()
        self.replying = False
        self.opening = False
        """A model is being opened: a message waits for it."""
        self._waiting = ""
        self._view = view
        self._network = {
            "hedge": options.hedge,
            "audit": f"{options.audit:g}",
            "drafts": "on" if options.drafts else "off",
            "expert-ram": "auto",
        }

    # Talking

    def submit(self, line: str) -> None:
        """A line of the user: a command, or a message to the model."""
        try:
            parsed = parse(line)
            if isinstance(parsed, Invocation):
                self._do(parsed)
            elif parsed:
                self.ask(parsed)
        except (CommandError, ConversationError) as error:
            self._view.say(str(error), "error")
        except OSError as error:
            self._view.say(f"That did not work: {clean_line(words_of_system(error))}.", "error")

    def ask(self, text: str) -> None:
        """Send a message."""
        self._idle("send a message")
        text = clean(text)
        if not self.model and self.opening and not self._waiting:
            self._waiting = text
            self._view.say("That is sent as soon as the model is open.")
            return
        if not self.model:
            self._view.edit(text)
            raise CommandError("No model is open yet; /model lists them.")
        if not self.conversation.title:
            self.conversation.title = title_of(text)
        self.conversation.turns.append(Turn("user", text))
        self._view.said(text)
        self._answer()

    def opened(self, model: str) -> None:
        """A model answers from now on; a message that waited for it is sent."""
        self.model, self.opening = model, False
        text, self._waiting = self._waiting, ""
        if text:
            self.ask(text)

    def not_opened(self) -> None:
        """No model was opened; a message that waited goes back to where it was written."""
        self.opening = False
        text, self._waiting = self._waiting, ""
        if text:
            self._view.edit(text)

    def take_reply(self, reasoning: str, text: str, stats: ReplyStats) -> None:
        """The reply is complete, or stopped; it is kept and saved."""
        self.replying = False
        self.stats = stats
        if text or reasoning:
            self.conversation.turns.append(Turn("assistant", text, reasoning))
        self.keep()

    def keep(self) -> None:
        """Save the conversation, if there is one; a full disk is said, and loses nothing that is shown."""
        if not self.conversation.turns:
            return
        self.conversation.model = self.model
        try:
            if not self.name:
                self.name = self.shelf.new_name(datetime.now(), self.conversation.title)
            self.shelf.save(self.name, self.conversation)
        except OSError as error:
            problem = clean_line(words_of_system(error))
            self._view.say(
                f"The conversation could not be saved: {problem}. /export FILE writes it.", "error"
            )

    def _answer(self) -> None:
        self.replying = True
        self.keep()
        self._view.reply(Ask(tuple(self.conversation.prompt()), self.conversation.sampling))

    def _idle(self, wish: str) -> None:
        if self.replying:
            raise CommandError(f"A reply is running; stop it (Esc) to {wish}.")

    # Commands

    def _do(self, call: Invocation) -> None:
        commands: Mapping[str, Callable[[Invocation], None]] = {
            "help": self._help,
            "model": self._model,
            "swarm": lambda _: self._view.show_swarm(),
            "donate": self._donate,
            "set": self._set,
            "system": self._system,
            "new": self._new,
            "load": self._load,
            "save": self._save,
            "export": self._export,
            "retry": self._retry,
            "edit": self._edit,
            "copy": self._copy,
            "find": lambda call: self._view.find(call.argument),
            "stats": lambda _: self._view.show(report.stats(self.stats)),
            "quit": lambda _: self._view.quit(),
        }
        commands[call.name](call)

    def _help(self, call: Invocation) -> None:
        topic = call.argument.lstrip("/").lower()
        topic = ALIASES.get(topic, topic)
        if topic and topic not in BY_NAME:
            raise CommandError(f"There is no command /{clean_line(topic, 30)}; /help lists them.")
        self._view.show_help(topic)

    def _model(self, call: Invocation) -> None:
        if not call.argument:
            self._view.show_models()
            return
        self._idle("switch the model")
        self._view.open_model(call.argument)

    def _donate(self, call: Invocation) -> None:
        words = call.words
        if not words:
            self._view.background(lambda backend: backend.snapshot().donation, self._lent)
            return
        kind = words[0].lower()
        if kind in ("pause", "resume", "off"):
            self._view.background(lambda backend: change_donation(backend, kind), self._lent)
            return
        if kind not in ("disk", "compute", "both") or len(words) != 2:
            raise CommandError(f"Write /donate {BY_NAME['donate'].usage}; for example /donate compute 8GB.")
        size = size_value(words[1])
        wish = Donation(kind, size if kind != "compute" else 0, size if kind != "disk" else 0)
        self.prefer(lend=kind, lend_disk_bytes=wish.disk_bytes, lend_ram_bytes=wish.ram_bytes)
        self._view.background(lambda backend: backend.donate(wish), self._lent)

    def _lent(self, view: DonationView) -> None:
        if not view.kind:
            self.prefer(lend="", lend_disk_bytes=0, lend_ram_bytes=0)
        self._view.say(report.donation(view), "error" if view.state == "failed" else "note")

    def _set(self, call: Invocation) -> None:
        word, _, value = call.argument.partition(" ")
        value = value.strip()
        if not word:
            self._view.show(report.settings(self.conversation.sampling, self._others()))
            return
        name = setting_name(word)
        if not value:
            table = report.settings(self.conversation.sampling, self._others())
            self._view.show(replace(table, rows=[row for row in table.rows if row[0] == name]))
        elif name in NETWORK:
            self._view.background(
                lambda backend: backend.tune(name, value), lambda now: self._tuned(name, now)
            )
        elif name in DISPLAY:
            self._display(name, value)
        else:
            self.conversation.sampling = with_setting(self.conversation.sampling, name, value)
            now = self.conversation.sampling.chosen().get(name.replace("-", "_"), "the model's default")
            self._view.say(f"{name} is {now}.")

    def _tuned(self, name: str, value: str) -> None:
        self._network[name] = value
        self._view.say(f"{name} is {value}.")

    def _display(self, name: str, value: str) -> None:
        choices = SETTING_VALUES[name]
        if value not in choices:
            raise CommandError(f"{name} is one of {', '.join(choices)}; not {clean_line(value, 30)}.")
        self.prefer(**{name: value})
        self._view.changed(name, value)
        self._view.say(f"{name} is {value}.")

    def prefer(self, **changes: Any) -> None:
        """Change preferences and remember them; where that cannot be, they hold until the end, and that is said."""
        self.preferences = replace(self.preferences, **changes)
        try:
            keep(self.options.home / "terminal.json", **changes)
        except OSError as error:
            self._view.say(
                f"That holds until you leave; it could not be remembered: {explain(error)}", "warning"
            )

    def _others(self) -> dict[str, str]:
        display = {name: str(getattr(self.preferences, name)) or "automatic" for name in DISPLAY}
        return {**self._network, **display}

    def _system(self, call: Invocation) -> None:
        if not call.argument:
            text = self.conversation.system
            self._view.say(
                f"System prompt: {text}" if text else "There is no system prompt; /system TEXT sets one."
            )
            return
        self._idle("change the system prompt")
        off = call.argument.lower() in ("off", "none")
        self.conversation.system = "" if off else clean(call.argument)
        self._view.say("No system prompt from the next message on." if off else "The system prompt is set.")

    def _new(self, call: Invocation) -> None:
        self._idle("begin another conversation")
        self.conversation = Conversation(
            system=self.conversation.system, sampling=self.conversation.sampling, model=self.model
        )
        self.name, self.stats = "", ReplyStats()
        self._view.replay()

    def _load(self, call: Invocation) -> None:
        self._idle("open another conversation")
        if not call.argument:
            self._view.show_conversations(self.shelf.names())
            return
        self.load(call.argument)

    def load(self, name: str) -> None:
        """Reopen a saved conversation; its keys and values are computed again with the next message."""
        loaded = self.shelf.load(name)
        self.conversation, self.stats = loaded, ReplyStats()
        self.name = name if "/" not in name else safe_name(Path(name).stem)
        self._view.replay()
        if loaded.model and self.model and loaded.model != self.model:
            self._view.say(
                f"This was said with {clean_line(loaded.model)}; {clean_line(self.model)} goes on from here."
            )

    def _save(self, call: Invocation) -> None:
        if not self.conversation.turns:
            raise CommandError("There is nothing to save yet.")
        if call.argument:
            name = safe_name(call.argument)
            old = self.shelf.path(self.name) if self.name else None
            if name != self.name and self.shelf.path(name).exists():
                raise CommandError(f"There is a conversation {name} already; choose another name.")
            self.conversation.title = clean_line(call.argument, 80)
            self.name = name
            self.keep()
            if old is not None and old != self.shelf.path(name):
                old.unlink(missing_ok=True)
        else:
            self.keep()
        self._view.say(f"Saved as {self.shelf.path(self.name)}.")

    def _export(self, call: Invocation) -> None:
        path = path_of(call.argument)
        if path.suffix.lower() not in FORMS:
            raise CommandError("Write /export FILE, with a name that ends in .md, .json or .txt.")
        if path.exists():
            raise CommandError(f"{clean_line(str(path))} exists already; choose another name.")
        export(self.conversation, path)
        self._view.say(f"Written to {clean_line(str(path))}.")

    def _retry(self, call: Invocation) -> None:
        self._idle("answer again")
        if not self.conversation.drop_reply():
            raise CommandError("There is no question to answer yet.")
        if not self.model:
            raise CommandError("No model is open yet; /model lists them.")
        self._view.replay()
        self._answer()

    def _edit(self, call: Invocation) -> None:
        self._idle("edit the question")
        text = self.conversation.take_back()
        if text is None:
            raise CommandError("There is no question to edit yet.")
        self._view.replay()
        self._view.edit(text)

    def _copy(self, call: Invocation) -> None:
        reply = self.conversation.last_reply
        if call.argument == "all":
            text = "\n\n".join(turn.text for turn in self.conversation.turns)
        elif call.argument == "code":
            text = last_code(reply.text) if reply else ""
        elif call.argument:
            raise CommandError("Write /copy, /copy code or /copy all.")
        else:
            text = reply.text if reply else ""
        if not text:
            raise CommandError("There is nothing to copy yet.")
        if self._view.copy(text):
            self._view.say(f"Copied {len(text):,} characters.")

    def completions(self) -> Mapping[str, Sequence[str]]:
        """The lists that commands complete from."""
        try:
            saved = self.shelf.names()
        except OSError:  # /load says so
            saved = []
        return {"models": [clean_line(model.name) for model in self.known_models], "conversations": saved}


def change_donation(backend: Backend, word: str) -> DonationView:
    """Pause, resume or end what this machine lends."""
    now = backend.snapshot().donation
    if word == "off":
        return backend.donate(Donation(""))
    if not now.kind:
        return now
    return backend.donate(Donation(now.kind, now.disk_bytes, now.ram_bytes, paused=word == "pause"))


def last_code(text: str) -> str:
    """The last fenced code block of a reply; empty when there is none."""
    from markdown_it import MarkdownIt

    fences = [token.content for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    return fences[-1] if fences else ""
