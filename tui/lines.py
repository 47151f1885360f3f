"""The chat without a terminal: reads lines, writes lines; the same slash commands print plain tables.

Text goes to standard output, everything about the work to standard error. With `json`, every event is one
object a line on standard output. Textual is never imported. A line that ends with a backslash goes on in the
next. Ctrl-C stops the reply, a second one the program.
"""

from __future__ import annotations

import json
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TextIO, TypeVar

from swarm.peers.settings import load_remembered
from swarm.system import moves_cursor
from tui import report, tables
from tui.backend import Ask, Backend
from tui.cleaner import clean, clean_line
from tui.commands import COMMANDS
from tui.controller import Controller
from tui.interrupts import stopping
from tui.messages import (
    Connected,
    Event,
    Failed,
    Finished,
    Notice,
    Progress,
    Ready,
    Reasoning,
    Retracted,
    Text,
)
from tui.options import Options
from tui.preferences import load
from tui.problems import explain, is_expected
from tui.reply import Reply
from tui.report import Table
from tui.status import describe
from tui.views import ModelView

T = TypeVar("T")

_LOOK_S = 1.0  # after which what is waited for is shown
_SUMMARIES = {
    "help": "what can be written here",
    "edit": "take the last question back and print it, to be sent again",
    "copy": "print the last reply, its last code block, or everything",
}
_COMMANDS = tuple(
    replace(command, summary=_SUMMARIES.get(command.name, command.summary)) for command in COMMANDS
)
_KEYS = (
    ("\\ at the end of a line", "the message goes on in the next"),
    ("Ctrl-C", "stop the reply and keep it; with none under way, leave"),
)


class _Left(Exception):
    """The user wants to leave."""


class Lines:
    """A user interface of lines; a `tui.controller.View`."""

    def __init__(
        self, options: Options, backend: Backend, output: TextIO, errors: TextIO, *, prompt: bool
    ) -> None:
        self.options = options
        self.failed = False
        self._backend = backend
        self._output = output
        self._errors = errors
        self._prompt = prompt
        self._phase = ""
        self._live = moves_cursor(errors)
        self.controller = Controller(options, self, load(options.home / "terminal.json"))

    # The conversation

    def start(self, target: str) -> bool:
        """Connect and open a model; whether that worked."""
        models: Sequence[str] = ()
        for event in self._watch(lambda: self._backend.connect(target)):
            if isinstance(event, Connected):
                self.controller.known_models = event.models
                models = [model.name for model in event.models]
                if not event.known and event.operator:
                    key = clean_line(event.operator)
                    self.say(f"The operator's key is {key}; it is remembered, and a change of it refused.")
        if self.failed:
            return False
        remembered = load_remembered(self.options.home / "settings.json").model
        wanted = self.options.model or (remembered if remembered in models else "")
        if not wanted and len(models) != 1:
            listed = ", ".join(clean_line(name) for name in models) or "none"
            self.say(f"Which model? Give --model NAME; this swarm has: {listed}.", "error")
            self.failed = True
            return False
        self.open_model(wanted or models[0])
        return not self.failed

    def talk(self, source: TextIO) -> None:
        """Read lines and answer them until the input ends or the user leaves."""
        try:
            for line in self._read(source):
                self.failed = False
                self.controller.submit(line)
        except _Left:
            pass

    def _read(self, source: TextIO) -> Iterator[str]:
        parts: list[str] = []
        while True:
            if self._prompt:
                self._errors.write("... " if parts else "> ")
                self._errors.flush()
            try:
                line = source.readline()
            except KeyboardInterrupt:
                self._errors.write("\n")
                return
            if not line:
                if parts:
                    yield "\n".join(parts)
                return
            line = line.rstrip("\r\n")
            if line.endswith("\\"):
                parts.append(line[:-1])
                continue
            yield "\n".join([*parts, line])
            parts = []

    # Events

    def _watch(self, job: Callable[[], Iterator[Event]]) -> Iterator[Event]:
        """The events of a job, which runs in a thread so that Ctrl-C can stop it; progress is shown."""
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                for event in job():
                    events.put(event)
            except BaseException as error:  # noqa: BLE001 - raised again below, in the main thread
                events.put(error)
            events.put(None)

        threading.Thread(target=work, name="swarm-compute", daemon=True).start()
        with stopping(self._backend.stop):
            while True:
                try:
                    event = events.get(timeout=_LOOK_S)
                except queue.Empty:
                    if self._phase and (waiting := self._backend.waiting()) is not None:
                        self._progress(waiting)
                    continue
                if event is None:
                    break
                if isinstance(event, BaseException):
                    raise event
                self._show_event(event)
                yield event
        self._end_progress()

    def _show_event(self, event: Event) -> None:
        if self.options.json:
            self._emit({"event": type(event).__name__.lower(), **asdict(event)})
        match event:
            case Progress():
                self._progress(event)
            case Notice():
                self.say(clean_line(event.text))
            case Failed():
                self.failed = True
                if not self.options.json:  # there it stands already
                    self.say(clean(event.message), "error")
                    if event.too_long and self._prompt:
                        self.say(f"The conversation is kept; {report.SHORTER}.")
            case _:
                pass

    def _progress(self, progress: Progress) -> None:
        if self.options.json:
            return
        if self._live:
            width = shutil.get_terminal_size().columns  # a line that wraps could not be written over
            self._errors.write(f"\r\x1b[K{describe(progress)[: max(1, width - 1)]}")
            self._errors.flush()
        elif progress.phase != self._phase and not self._prompt:
            begun = Progress(progress.phase, detail=progress.detail)  # how far it is would soon be old
            self._errors.write(describe(begun) + "\n")
        self._phase = progress.phase

    def _end_progress(self) -> None:
        if self._live and self._phase:
            self._errors.write("\r\x1b[K")
            self._errors.flush()
        self._phase = ""

    def _emit(self, value: dict[str, Any]) -> None:
        self._output.write(json.dumps(value) + "\n")
        self._output.flush()

    # What the controller asks for

    def say(self, text: str, kind: str = "note") -> None:
        """A line on standard error."""
        self._end_progress()
        if self.options.json:
            self._emit({"event": kind, "text": clean(text)})
        else:
            prefix = "swarm: " if kind == "error" else ""
            self._errors.write(prefix + clean(text) + "\n")
            self._errors.flush()
        self.failed = self.failed or kind == "error"

    def said(self, text: str) -> None:
        """The user knows what was sent."""

    def show(self, table: Table) -> None:
        """A plain table."""
        names = [column.name or f"column{at}" for at, column in enumerate(table.columns)]
        if self.options.json:
            rows = [dict(zip(names, row, strict=True)) for row in table.rows]
            self._emit({"event": "table", "title": table.title, "rows": rows})
            return
        lines = [table.title] if table.title else []
        if not table.rows:
            lines.append(table.empty)
        else:
            made = tables.plain(table.columns, table.rows)
            lines += made if any(column.name for column in table.columns) else made[1:]
        self._output.write("\n".join(lines) + "\n")
        self._output.flush()

    def background(self, work: Callable[[Backend], T], then: Callable[[T], None]) -> None:
        """Do it now."""
        try:
            result = work(self._backend)
        except ValueError as error:
            self.say(str(error), "error")
        except Exception as error:
            if not is_expected(error):
                raise
            self.say(explain(error), "error")
        else:
            then(result)

    def reply(self, request: Ask) -> None:
        """Write the reply as it comes."""
        reply = Reply()
        stats = self.controller.stats
        for event in self._watch(lambda: self._backend.ask(request)):
            match event:
                case Text():
                    piece = reply.take(event)
                    if piece and not self.options.json:
                        self._end_progress()
                        self._output.write(piece)
                        self._output.flush()
                case Reasoning():
                    reply.take(event)
                case Retracted():
                    if reply.take_back(event) and not self.options.json:
                        self._say_again(event.reason, reply.text)
                case Finished():
                    stats = event.stats
                case Failed() if not (self._prompt or reply.text or reply.reasoning):
                    self.controller.conversation.take_back()  # nobody is there to edit it; the next one stands alone
                case _:
                    pass
        if reply.text and not self.options.json:
            self._output.write("\n")
            self._output.flush()
        self.controller.take_reply(reply.reasoning, reply.text, stats)

    def _say_again(self, reason: str, text: str) -> None:
        """What was written cannot be unwritten: say so in its place, and begin the reply again."""
        self._end_progress()
        self._output.write(f"\n[What stands above is wrong: {clean_line(reason)}. The reply again:]\n{text}")
        self._output.flush()

    def open_model(self, name: str) -> None:
        """Switch to a model."""
        for event in self._watch(lambda: self._backend.open(name)):
            if isinstance(event, Ready):
                self.controller.opened(event.model.name)
                if self._prompt:
                    self.say(report.greeting(event.model, event.context_tokens, "/help lists commands"))

    def show_swarm(self) -> None:
        """The network, as it is now."""
        view = self._backend.snapshot()
        if self.options.json:
            self._emit({"event": "swarm", **asdict(view)})
            return
        self.show(report.peers(view))
        if covered := report.coverage(view):
            self._output.write(covered + "\n")
        if view.bans:
            self.show(report.bans(view))
        self._output.write(report.donation(view.donation) + "\n")
        self._output.flush()

    def show_models(self) -> None:
        """All models."""
        self.background(lambda backend: backend.models(), self._list_models)

    def _list_models(self, models: Sequence[ModelView]) -> None:
        self.controller.known_models = models
        if self.options.json:
            self._emit({"event": "models", "models": [asdict(model) for model in models]})
        else:
            self.show(report.models(models))

    def show_conversations(self, names: Sequence[str]) -> None:
        """Names to load."""
        rows = [[name] for name in names]
        self.show(Table("Conversations", (tables.Column(""),), rows, "No conversation was saved yet."))

    def show_help(self, topic: str) -> None:
        """Commands, and the few keys that mean something here."""
        for table in report.help_tables(topic, _COMMANDS, _KEYS):
            self.show(table)

    def replay(self) -> None:
        """Say where the conversation stands."""
        turns = len(self.controller.conversation.turns)
        self.say(f"The conversation has {turns} messages." if turns else "A new conversation.")

    def edit(self, text: str) -> None:
        """There is no editor: the text is printed, to be sent again."""
        self._output.write(text + "\n")

    def find(self, text: str) -> None:
        """Lines of the conversation that contain a text."""
        wanted = text.casefold()
        turns = self.controller.conversation.turns
        rows = [
            [str(at + 1), turn.role, line.strip()]
            for at, turn in enumerate(turns)
            for line in turn.text.split("\n")
            if wanted and wanted in line.casefold()
        ]
        columns = (tables.Column("#", "right"), tables.Column("who"), tables.Column("line"))
        self.show(Table("", columns, rows, "Not found."))

    def copy(self, text: str) -> bool:
        """There is no clipboard: the text is printed."""
        self._output.write(text + "\n")
        return False

    def changed(self, setting: str, value: str) -> None:
        """Nothing to redraw."""

    def quit(self) -> None:
        """Leave."""
        raise _Left


def run(
    options: Options,
    make: Callable[[], Backend] | None = None,
    *,
    source: TextIO | None = None,
    output: TextIO | None = None,
    errors: TextIO | None = None,
) -> int:
    """Chat by lines until the input ends. The exit code: 0, or 1 when the last thing asked for failed.

    Streams default to the standard ones; a prompt is shown when the source is a terminal.
    """
    source, output, errors = source or sys.stdin, output or sys.stdout, errors or sys.stderr
    target = options.target or load_remembered(options.home / "settings.json").swarm or ""
    if not target and not options.local:
        errors.write("swarm: No swarm is known yet: give --tracker HOST or an invite, or --local DIR.\n")
        return 2
    backend = make() if make else _default(options)
    try:
        lines = Lines(options, backend, output, errors, prompt=source.isatty())
        if not lines.start(target):
            return 1
        lines.talk(source)
        return 1 if lines.failed else 0
    except KeyboardInterrupt:
        return 130
    finally:
        backend.close()


def _default(options: Options) -> Backend:
    from tui.places import backend_for

    return backend_for(options)
