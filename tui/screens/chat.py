"""The chat: scrollback, editor, status line; shows what the controller and the bridge say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer

from tui import document, report
from tui.backend import Ask, Backend
from tui.cleaner import clean, clean_line
from tui.controller import Controller
from tui.messages import (
    EndReason,
    Event,
    Failed,
    Finished,
    Notice,
    NoticeKind,
    Progress,
    Ready,
    Reasoning,
    Retracted,
    Text,
)
from tui.preferences import History
from tui.problems import explain
from tui.reply import Reply
from tui.report import Table
from tui.screens.conversations import ConversationsScreen
from tui.screens.help import HelpScreen
from tui.screens.models import ModelsScreen
from tui.screens.swarm import SwarmScreen
from tui.screens.talk import Talk
from tui.status import Status
from tui.views import ModelView
from tui.widgets.editor import Editor
from tui.widgets.find import FindBar
from tui.widgets.line import Completions, StatusLine
from tui.widgets.tables import table_lines
from tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from tui.app import SwarmApp

T = TypeVar("T")
_POLL_S = 0.25
_NEWS_S = 5.0


class ChatScreen(Talk):
    """Where one talks."""

    AUTO_FOCUS = "#editor"
    DEFAULT_CSS = "ChatScreen { layout: vertical; background: $background; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Stop or copy", priority=True, show=False),
        Binding("escape", "escape", "Stop", show=False),
        Binding("ctrl+r", "command('retry')", "Answer again", priority=True, show=False),
        Binding("ctrl+e", "command('edit')", "Edit the question", priority=True, show=False),
        Binding("ctrl+y", "command('copy')", "Copy the reply", priority=True, show=False),
        Binding("ctrl+n", "command('new')", "New conversation", priority=True, show=False),
        Binding("ctrl+o", "command('load')", "Conversations", priority=True, show=False),
        Binding("ctrl+t", "reasoning", "Reasoning", priority=True, show=False),
        Binding("ctrl+f", "find", "Search", priority=True, show=False),
        Binding("f1", "command('help')", "Help", show=False),
        Binding("f2", "command('swarm')", "Swarm", show=False),
        Binding("f3", "command('model')", "Models", show=False),
    ]

    def __init__(self, controller_of: Callable[[ChatScreen], Controller], history: History) -> None:
        super().__init__()
        self.controller = controller_of(self)
        self.status = Status()
        self._history = history
        self._reply: Reply | None = None
        self._link = ""
        self._lost = False
        self._lending = ""
        self._news: Timer | None = None

    @property
    def swarm_app(self) -> SwarmApp:
        """The application, by its own type."""
        return cast("SwarmApp", self.app)

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield Transcript(fold_reasoning=self.controller.preferences.reasoning != "shown")
        yield FindBar()
        yield Completions()
        yield Editor(self._history)
        yield StatusLine(self.status)

    def on_mount(self) -> None:
        """Look at the network now and then."""
        self.find_parts()
        self.set_interval(_POLL_S, self._poll)
        self.know()

    # Events of the backend

    def _poll(self) -> None:
        if (backend := self.swarm_app.bridge.backend) is None:
            return
        self.status.swarm = backend.snapshot()
        self.status.waiting = backend.waiting() if self.status.progress else None
        if self.controller.replying:
            self.status.measure(backend.live())
        if self.status.swarm.donation.state != self._lending:
            self._lending = self.status.swarm.donation.state
            if self._lending == "failed":
                self.say(report.donation(self.status.swarm.donation), "error")
        if self.status.swarm.link != self._link:
            self._relinked(self._link, self.status.swarm.link)
            self._link = self.status.swarm.link
        self.refresh_status()

    def _relinked(self, before: str, now: str) -> None:
        """The swarm went out of reach or came back: say so, and lend again what could not be lent meanwhile."""
        linked = ("online", "relayed")
        if now == "offline" and before in linked:
            self._lost = True
            self.say("The swarm is out of reach. What is on this machine still answers.", "warning")
        elif now in linked and self._lost:
            self._lost = False
            self.say("Connected again.")
        if now in linked and self.status.swarm.donation.state == "failed":
            self.controller.submit("/donate resume")

    def refresh_status(self) -> None:
        """Show the status as it is now."""
        self.query_one(StatusLine).refresh()

    def _replied(self, events: list[Event]) -> None:
        """News of the running reply."""
        for event in events:
            match event:
                case Text():
                    self.transcript.add_text(self._collected.take(event))
                case Reasoning():
                    self.transcript.add_reasoning(self._collected.take(event))
                case Retracted():
                    if self._collected.take_back(event):
                        self.transcript.take_back(self._collected.reasoning, self._collected.text)
                        self.tell("The reply is corrected: what a liar had changed is said anew.")
                case Progress():
                    self.status.progress = event
                    self.refresh_status()
                case Notice():
                    self._notice(event)
                case Finished():
                    self._end_reply(event)
                case Failed():
                    self._fail_reply(event)
                case _:
                    pass

    @property
    def _collected(self) -> Reply:
        self._reply = self._reply or Reply()
        return self._reply

    def _notice(self, notice: Notice) -> None:
        """What happens in the network passes through the status line; what changes it for good is said."""
        if notice.kind in (NoticeKind.BAN, NoticeKind.OFFLINE):
            self.say(notice.text, "warning")
        else:
            self.tell(notice.text)

    def tell(self, text: str) -> None:
        """Show something in the status line for a few seconds."""
        self.status.news = clean_line(text)
        self.refresh_status()
        if self._news is not None:
            self._news.stop()
        self._news = self.set_timer(_NEWS_S, self._old_news)

    def _old_news(self) -> None:
        self._news = None
        self.status.news = ""
        self.refresh_status()

    def _end_reply(self, event: Finished) -> None:
        reply = self._collected
        self._reply = None
        self.status.progress = None
        self.status.measure(event.stats)
        self.transcript.end_reply(report.footer(event.stats, event.reason))
        self.controller.take_reply(reply.reasoning, reply.text, event.stats)
        if event.reason is EndReason.CONTEXT:
            self.say(f"The context is full: {report.SHORTER}.", "warning")
        self.know()
        self.refresh_status()

    def _fail_reply(self, event: Failed) -> None:
        reply = self._collected
        self._reply = None
        self.status.progress = None
        self.transcript.end_reply("broken off" if reply.text else "")
        self.controller.take_reply(reply.reasoning, reply.text, self.controller.stats)
        self.say(clean(event.message), "error")
        self.say(f"The conversation is kept; {report.SHORTER if event.too_long else '/retry asks again'}.")
        self.refresh_status()

    def keep_partial(self) -> None:
        """The program ends: what was said so far is kept."""
        if self.controller.replying:
            reply = self._collected
            self.controller.take_reply(reply.reasoning, reply.text, self.controller.stats)

    # What the controller asks for

    def say(self, text: str, kind: str = "note") -> None:
        """A note in the flow."""
        self.transcript.add_note(clean(text), kind)

    def said(self, text: str) -> None:
        """The user's message, in the flow."""
        self.transcript.add_message(text)

    def show(self, table: Table) -> None:
        """A table in the flow."""
        if not table.rows:
            self.say(table.empty)
            return
        self.transcript.add(document.rows(table_lines(table)))

    def background(self, work: Callable[[Backend], T], then: Callable[[T], None]) -> None:
        """Do something that blocks, then go on."""

        async def wait() -> None:
            try:
                result = await self.swarm_app.bridge.call(work)
            except ValueError as error:
                self.say(str(error), "error")
            except Exception as error:  # noqa: BLE001 - whatever it is, the user must see it, and may go on
                self.say(explain(error), "error")
            else:
                then(result)

        self.run_worker(wait(), exit_on_error=True)

    def reply(self, request: Ask) -> None:
        """Let the model answer."""
        self._reply = None
        self.transcript.begin_reply()
        self.swarm_app.bridge.run(lambda backend: backend.ask(request), self._replied)

    def open_model(self, name: str) -> None:
        """Switch to a model."""
        known = {clean_line(model.name): model.name for model in self.controller.known_models}
        self.swarm_app.open_model(known.get(name, name))

    def show_swarm(self) -> None:
        """The network live."""
        self.app.push_screen(SwarmScreen(self.controller))

    def show_models(self) -> None:
        """All models, to choose from."""
        self.background(lambda backend: backend.models(), self._choose_model)

    def _choose_model(self, models: Sequence[ModelView]) -> None:
        self.controller.known_models = models
        self.know()

        def chosen(name: str | None) -> None:
            if name is not None:
                self.controller.submit(f"/model {name}")

        self.app.push_screen(ModelsScreen(models), chosen)

    def show_conversations(self, names: Sequence[str]) -> None:
        """Saved conversations, to choose from."""

        def chosen(name: str | None) -> None:
            if name is not None:
                self.controller.submit(f"/load {name}")

        self.app.push_screen(ConversationsScreen(self.controller.shelf, names), chosen)

    def show_help(self, topic: str) -> None:
        """Commands and keys."""
        if topic:
            self.show(report.help_tables(topic)[0])
        else:
            self.app.push_screen(HelpScreen())

    def replay(self) -> None:
        """Show the conversation from its beginning."""
        self.transcript.clear()
        for turn in self.controller.conversation.turns:
            if turn.role == "user":
                self.transcript.add_message(turn.text)
            else:
                self.transcript.add_reply(turn.reasoning, turn.text)
        self.status.context_used = 0
        self.status.measure(self.controller.stats)
        self.refresh_status()

    def edit(self, text: str) -> None:
        """Put a text into the editor."""
        self.editor.put(text)
        self.editor.focus()

    def find(self, text: str) -> None:
        """Open the search."""
        self.query_one(FindBar).open(text)

    def copy(self, text: str) -> bool:
        """Ask the terminal to put a text on the clipboard."""
        self.app.copy_to_clipboard(text)
        return True

    def changed(self, setting: str, value: str) -> None:
        """A display setting has another value."""
        if setting == "theme":
            self.swarm_app.use_theme(value)
        elif setting == "reasoning":
            self.transcript.fold_all(value != "shown")

    def quit(self) -> None:
        """Leave."""
        self.run_worker(self.app.action_quit())

    def opened(self, ready: Ready) -> None:
        """Another model answers from now on."""
        self.status.model = ready.model.name
        self.status.context_tokens = ready.context_tokens
        self.status.progress = None
        self.status.problem = ""
        self.refresh_status()
        self.say(report.greeting(ready.model, ready.context_tokens))
        self.controller.opened(ready.model.name)

    def know(self) -> None:
        """Complete commands from what is known now."""
        self.editor.know(self.controller.completions())

    # Keys and messages of the widgets

    def on_editor_submitted(self, message: Editor.Submitted) -> None:
        """Send, or do."""
        self.query_one(Completions).offer(())
        self.controller.submit(message.text)

    def on_editor_forgotten(self, message: Editor.Forgotten) -> None:
        """Say that a line will not be found again."""
        self.tell(f"Not kept in the history: {explain(message.reason)}")

    def on_editor_completing(self, message: Editor.Completing) -> None:
        """Show what could complete the line."""
        self.query_one(Completions).offer(message.candidates)

    def action_interrupt(self) -> None:
        """Ctrl-C: copy a selection, else stop the reply, else say how one leaves."""
        if self.editor.has_focus and self.editor.selected_text:
            self.app.copy_to_clipboard(self.editor.selected_text)
        elif selected := self.get_selected_text():
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
        elif not self._stop():
            if self.editor.text:
                self.editor.put("")
            else:
                self.tell("Ctrl-Q or /quit leaves.")

    def action_escape(self) -> None:
        """Esc: close what is open, else stop the reply."""
        completions = self.query_one(Completions)
        if self.query_one(FindBar).display:
            self.query_one(FindBar).action_close()
        elif completions.display:
            completions.offer(())
        else:
            self._stop()

    def _stop(self) -> bool:
        backend = self.swarm_app.bridge.backend
        if backend is None or not (self.controller.replying or self.status.progress):
            return False
        backend.stop()
        return True

    def action_command(self, name: str) -> None:
        """A key for a command."""
        self.controller.submit(f"/{name}")

    def action_reasoning(self) -> None:
        """Fold or show reasoning."""
        self.controller.submit(f"/set reasoning {'shown' if self.transcript.fold_reasoning else 'folded'}")

    def action_find(self) -> None:
        """Open the search."""
        self.find("")
