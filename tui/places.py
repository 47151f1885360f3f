"""The real backend: a place that models come from, and the opened model that answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from tui import discovery
from tui.backend import Ask, Backend, Donation
from tui.compiling import CompileWatch
from tui.local import LocalPlace
from tui.messages import Event, Failed, Finished, Phase, Progress, Ready
from tui.options import Options, directory_of
from tui.place import Emit, Place
from tui.problems import NotThere, explain, is_expected
from tui.speaker import Speaker
from tui.views import DonationView, Found, ModelView, ReplyStats, SwarmView

T = TypeVar("T")


class PlaceBackend:
    """A `tui.backend.Backend` over a `tui.place.Place`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._place: Place | None = None
        self._speaker: Speaker | None = None
        self._compiling = CompileWatch()
        self._compiling.__enter__()

    def discover(self, seconds: float) -> tuple[Found, ...]:
        """Look around on the local network."""
        return discovery.swarms(seconds)

    def connect(self, target: str) -> Iterator[Event]:
        """Go to another place; the one before is left."""
        place = self._find(target)
        if self._place is not None:
            self._place.close()
        self._place = place
        yield from _guarded(lambda emit: emit(place.connect(emit)), place.is_away)

    def _find(self, target: str) -> Place:
        directory = self._options.local or directory_of(target)
        if directory:
            return LocalPlace(directory, self._options)
        from tui.remote import SwarmPlace  # a local model needs nothing of the network

        return SwarmPlace(target, self._options)

    def models(self) -> tuple[ModelView, ...]:
        """What the place has."""
        return self._place.models() if self._place is not None else ()

    def open(self, model: str) -> Iterator[Event]:
        """Open a model that can chat; only then the one before is closed."""

        def work(emit: Emit) -> None:
            if self._place is None:
                raise NotThere("There is no swarm yet; give an invite, an address or a directory.")
            engine, view = self._place.open(model, emit)
            before, self._speaker = self._speaker, Speaker(engine)
            if before is not None:
                before.engine.close()
            emit(Ready(view, engine.model.context_length))

        yield from _guarded(work, self._place.is_away if self._place is not None else _never)

    def ask(self, request: Ask) -> Iterator[Event]:
        """Answer."""
        place, speaker = self._place, self._speaker
        if place is None or speaker is None:
            yield Failed("No model is open yet; /model lists them.")
            return
        place.begin()
        for event in speaker.ask(request):
            yield from place.news()
            if isinstance(event, Finished):
                yield Finished(event.reason, place.counters(event.stats))
            else:
                yield event

    def stop(self) -> None:
        """End what runs."""
        if self._speaker is not None:
            self._speaker.stop()
        if self._place is not None:
            self._place.stop()

    def snapshot(self) -> SwarmView:
        """The network now."""
        return self._place.snapshot() if self._place is not None else SwarmView()

    def live(self) -> ReplyStats:
        """The running reply."""
        if self._speaker is None or self._place is None:
            return ReplyStats()
        return self._place.counters(self._speaker.live())

    def waiting(self) -> Progress | None:
        """Kernels that are being compiled, or bytes on their way."""
        if self._compiling:
            return Progress(Phase.COMPILING)
        return self._place.waiting() if self._place is not None else None

    def tune(self, name: str, value: str) -> str:
        """Change a setting of the network."""
        if self._place is None:
            raise ValueError("There is no swarm yet.")
        return self._place.tune(name, value)

    def donate(self, wish: Donation) -> DonationView:
        """Lend."""
        if self._place is None:
            raise ValueError("There is no swarm yet.")
        return self._place.donate(wish)

    def close(self) -> None:
        """Leave."""
        self.stop()
        speaker, place, self._speaker, self._place = self._speaker, self._place, None, None
        try:
            if place is not None:
                place.close()  # first, and at most once: an engine that is closed in a swarm makes its audits
        finally:
            if speaker is not None:
                speaker.engine.close()
        self._compiling.__exit__(None, None, None)


def backend_for(options: Options) -> Backend:
    """The backend for some options."""
    return PlaceBackend(options)


def _never(error: BaseException) -> bool:
    return False


def _guarded(work: Callable[[Emit], None], is_away: Callable[[BaseException], bool]) -> Iterator[Event]:
    """The events of work that reports by calling; it runs in a thread of its own.

    What can happen becomes Failed; a fault of ours is raised here, to whoever takes the events.
    """
    events: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            work(events.put)
        except Exception as error:  # noqa: BLE001 - told or raised below, in the thread that waits
            events.put(error)
        finally:
            events.put(None)

    thread = threading.Thread(target=run, name="swarm-open", daemon=True)
    thread.start()
    while (event := events.get()) is not None:
        if not isinstance(event, Exception):
            yield event
        elif is_expected(event):
            yield Failed(explain(event), is_away(event))
        else:
            raise event
    thread.join()
