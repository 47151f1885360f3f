"""A swarm as the place models come from: trio's thread and a session in it, seen from threads that block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue

from engine.checkpoint import read_json
from engine.engine import Engine
from engine.gguf import presented
from engine.source import Source
from swarm.errors import SwarmError
from swarm.peers.models import ModelInfo, NothingKeptHere, OpenModel, PeerView, Snapshot, WebView, state_of
from swarm.peers.network import NetworkClosed, NetworkThread
from swarm.peers.remote import RemoteExperts, Rules
from swarm.peers.session import Session, join
from swarm.peers.settings import home, remember
from swarm.peers.target import parse_target
from swarm.peers.trace import tracing
from swarm.peers.versions import newer
from swarm.units import format_bytes, format_share, parse_bytes, parse_share, parse_switch
from swarm.wire.rpc import ConnectionLost, Unreachable
from tui import views
from tui.backend import Donation
from tui.donors import Donors, Numbers
from tui.lending import Lending
from tui.messages import Connected, Notice, NoticeKind, Phase, Progress
from tui.options import Options
from tui.place import Emit, engine_options, expert_shape, must_chat, storage_format
from tui.problems import NotThere
from tui.views import Ban, DonationView, ModelView, ReplyStats, Role, SwarmView

_TICK_S = 0.25
_LOOK_S = 5.0
_RANGES = 200
_AWAY = (Unreachable, ConnectionLost, NothingKeptHere, NetworkClosed)


class SwarmPlace:
    """One swarm, joined."""

    def __init__(self, target: str, options: Options) -> None:
        self._target = target
        self._options = options
        self._network: NetworkThread | None = None
        self._session: Session | None = None
        self._opened: dict[str, ModelView] = {}
        self._current: OpenModel | None = None
        self._donors: Donors | None = None
        self._numbers = Numbers()
        self._lending = Lending()
        self._traced = ExitStack()
        self._link = "offline"
        self._renewed = SimpleQueue[Notice]()
        self._left = threading.Event()

    def connect(self, emit: Emit) -> Connected:
        """Join it."""
        target = parse_target(self._target, self._options.token)
        if not self._options.offline:
            emit(Progress(Phase.CONNECTING, detail=str(target.address)))
        self._link = "connecting"
        network = NetworkThread()
        network.__enter__()
        self._network = network
        try:
            self._session = network.enter(join, target, home(), self._options.offline)
            infos = network.call(self._session.models)
        except BaseException:
            self.close()
            raise
        self._link = ""
        threading.Thread(target=self._look, args=(network, self._session), daemon=True).start()
        operators = {info.operator for info in infos}
        known = target.operator is not None or any(info.issued_s is not None for info in infos)
        return Connected(
            str(target.address),
            ", ".join(sorted(fingerprint(key) for key in operators)),
            known,
            tuple(self._view(info) for info in infos),
        )

    def _look(self, network: NetworkThread, session: Session) -> None:
        """Notice now and then that the tracker went away or came back, and that a model has a later version."""
        looked_at: set[bytes] = set()
        while not self._left.wait(_LOOK_S):
            try:
                if not session.online:
                    network.call(session.connect)
                current = self._current
                if current is None:
                    network.call(session.models)
                elif later := network.call(newer, session, current, looked_at):
                    self._renewed.put(
                        Notice(
                            NoticeKind.OTHER,
                            f"{later.name} has a later version, {later.version}; this one stays open until "
                            f"/model {later.name}",
                        )
                    )
                if self._donors is not None:
                    network.call(self._donors.ping)
            except NetworkClosed:
                return
            except (SwarmError, OSError):  # it refuses us now, or our disk does; what is open stays open
                continue

    def models(self) -> tuple[ModelView, ...]:
        """All models, as the tracker lists them now."""
        session, network = self._joined()
        return tuple(self._view(info) for info in network.call(session.models))

    def open(self, model: str, emit: Emit) -> tuple[Engine, ModelView]:
        """Open the model's mirror and load what is dense of it; bytes come as they are read."""
        session, network = self._joined()
        before = session.current
        opened: OpenModel = network.call(session.open_model, model)
        for notice in opened.notices:
            emit(Notice(NoticeKind.OFFLINE, notice))
        with ExitStack() as undo:
            undo.callback(setattr, session, "current", before)
            with self._telling(emit):
                view = with_facts(self._view(opened.info), opened.source)
                engine = undo.enter_context(Engine.open(opened.source, engine_options(self._options)))
            must_chat(engine, model)
            rules = _rules(self._options)
            remote: RemoteExperts = network.call(session.experts, opened, engine.bank, rules)
            engine.experts = remote
            engine.at_end.callback(self._part_with, remote)
            self._traced.close()  # the same file is written to from here on; where it cannot be, to none
            self._traced.enter_context(
                tracing(remote, self._options.trace, lambda text: emit(Notice(NoticeKind.OTHER, text)))
            )
            undo.pop_all()
        self._current, self._donors = opened, Donors(remote, self._numbers)
        needed = opened.mirror.progress.wanted_bytes
        view = replace(view, needed_bytes=needed, fetched_bytes=needed)
        self._opened[model] = view
        return engine, replace(view, open=True)

    @contextmanager
    def _telling(self, emit: Emit) -> Iterator[None]:
        """Say how far the mirror is, four times a second."""
        done = threading.Event()

        session, _ = self._joined()

        def tell() -> None:
            while not done.wait(_TICK_S):
                now = session.snapshot()
                seen, fetching = now.progress, now.progress.verified_bytes < now.progress.wanted_bytes
                phase, rate = (Phase.FETCHING, now.bytes_per_s) if fetching else (Phase.LOADING, 0.0)
                emit(Progress(phase, seen.verified_bytes, seen.wanted_bytes, "B", rate))

        thread = threading.Thread(target=tell, name="swarm-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def snapshot(self) -> SwarmView:
        """The session now."""
        session = self._session
        if session is None:
            return SwarmView(link=self._link, address=self._target if "://" not in self._target else "")
        now, current = session.snapshot(), session.current  # also while it is being opened
        total = current.info.chunks if current else 0
        serving = [(peer.key, numbered(self._numbers.of(peer.key), peer, total)) for peer in now.peers]
        web = [_web(self._numbers.of(source.name), source) for source in now.web]
        donors = self._donors
        return SwarmView(
            link="online" if now.online else "offline",
            address=now.tracker,
            operator=fingerprint(now.operator) if now.operator else "",
            model=now.model,
            peers=(*(donors.peers(serving) if donors else (view for _, view in serving)), *web),
            experts=donors.replicas() if donors else (),
            ranges=_replicas(current, total) if current else (),
            bans=self._bans(now),
            donation=self._lending.view(),
            fetched_bytes=now.progress.verified_bytes,
            fetch_rate=now.bytes_per_s,
        )

    def _bans(self, now: Snapshot) -> tuple[Ban, ...]:
        banned = {self._numbers.of(peer.key): peer.trouble for peer in now.peers if peer.banned}
        banned.update(self._donors.bans() if self._donors else ())
        return tuple(Ban(number, banned[number] or "it sent wrong bytes") for number in sorted(banned))

    def counters(self, stats: ReplyStats) -> ReplyStats:
        """With what donors did for it."""
        return self._donors.counters(stats) if self._donors else stats

    def news(self) -> list[Notice]:
        """Failovers, donors that were caught, and that there is a later version of the model."""
        renewed = []
        while not self._renewed.empty():
            renewed.append(self._renewed.get())
        return renewed + (self._donors.news() if self._donors else [])

    def waiting(self) -> Progress | None:
        """Bytes that are on their way."""
        if self._session is None:
            return None
        now = self._session.snapshot()
        seen = now.progress
        if seen.verified_bytes >= seen.wanted_bytes:
            return None
        return Progress(Phase.FETCHING, seen.verified_bytes, seen.wanted_bytes, "B", now.bytes_per_s)

    def begin(self) -> None:
        """Count from here."""
        if self._donors:
            self._donors.begin()

    def stop(self) -> None:
        """Give up joining, if that is what is being done."""
        if self._link == "connecting":
            self.close()

    def tune(self, name: str, value: str) -> str:
        """Change hedge, audit or drafts from the next layer on, expert-ram from the next opening on."""
        if name == "expert-ram":
            size = parse_bytes(value)
            self._options = replace(self._options, expert_ram_bytes=size)
            return f"{format_bytes(size)}, from the next opening of a model on"
        options = self._options
        if name == "hedge":
            options = replace(options, hedge=value.lower().removesuffix("ms").strip())
        elif name == "drafts":
            options = replace(options, drafts=parse_switch(value))
        else:
            options = replace(options, audit=parse_share(value))
        rules = _rules(options)
        self._options = options
        if self._donors:
            self._donors.experts.rules = rules
        return _told(options)[name]

    def _part_with(self, experts: RemoteExperts) -> None:
        session, network = self._session, self._network
        if session is not None and network is not None:
            with suppress(NetworkClosed):
                network.call(session.part_with, experts)

    def donate(self, wish: Donation) -> DonationView:
        """Lend to this swarm, in processes of their own."""
        remember(home().settings, swarm=self._target)
        current = self._session.current if self._session is not None else None
        return self._lending.want(wish, current.info.name if current else "")

    def close(self) -> None:
        """Leave the swarm and end trio's thread."""
        self._left.set()
        self._traced.close()
        self._lending.close()
        network, session, self._network, self._session = self._network, self._session, None, None
        self._link = "offline"
        if network is not None:
            if session is not None and self._donors is not None:
                with suppress(NetworkClosed, SwarmError):  # whoever is gone needs no goodbye
                    network.call(session.finish, self._donors.experts)
            network.close()

    def is_away(self, error: BaseException) -> bool:
        """Whether an error means that the swarm cannot be reached."""
        return isinstance(error, _AWAY)

    def _joined(self) -> tuple[Session, NetworkThread]:
        if self._session is None or self._network is None:
            raise NotThere("The swarm was left; connect again.")
        return self._session, self._network

    def _view(self, info: ModelInfo) -> ModelView:
        kept = self._opened.get(info.name, ModelView(info.name))
        lacking = info.chunks - info.covered_chunks
        current = self._current is not None and self._current.info.name == info.name
        missing = (f"{format_share(lacking / info.chunks)} of its bytes",) if lacking and info.holders else ()
        return replace(
            kept,
            size_bytes=info.size_bytes,
            experts=kept.experts or info.experts,
            missing=missing,
            open=current,
        )


def _rules(options: Options) -> Rules:
    """How donors are asked, as the user wants it; what they computed is kept as bytes, to go on without them."""
    keep = options.expert_ram_bytes is not None
    return Rules.parse(options.hedge, options.audit, keep, fetch=True, draft=options.drafts)


def _told(options: Options) -> dict[str, str]:
    """How donors are asked, as a user reads it, by setting."""
    drafts = "on" if options.drafts else "off"
    return {"hedge": options.hedge, "audit": format_share(options.audit), "drafts": drafts}


def with_facts(view: ModelView, source: Source) -> ModelView:
    """A model with its family, format and experts, from its configuration."""
    config = read_json(presented(source), "config.json") or {}
    family, layers, experts = expert_shape(config)
    return replace(view, family=family, format=storage_format(config), layers=layers, experts=experts)


def numbered(number: int, peer: PeerView, chunks: int) -> views.PeerView:
    """A peer as the user sees it: by number."""
    held = "everything" if peer.chunks >= chunks else format_share(peer.chunks / max(1, chunks))
    return views.PeerView(
        number,
        Role.DISK if peer.lent else Role.MAINTAINER,
        held=held,
        bytes_down=peer.given_bytes,
        state=state_of(peer),
    )


def _web(number: int, source: WebView) -> views.PeerView:
    """A web server as the user sees it."""
    return views.PeerView(
        number, Role.WEB, held="everything", bytes_down=source.given_bytes, state=state_of(source)
    )


def _replicas(opened: OpenModel, chunks: int) -> tuple[float, ...]:
    """Mean replicas of equal ranges of chunks."""
    parts = min(_RANGES, chunks)
    counts = [0] * parts
    for replica in opened.replicas.known:
        for start, stop in replica.held.ranges():
            for part in range(start * parts // chunks, min(parts, -(-stop * parts // chunks))):
                low, high = part * chunks // parts, (part + 1) * chunks // parts
                counts[part] += max(0, min(stop, high) - max(start, low))
    sizes = [(part + 1) * chunks // parts - part * chunks // parts for part in range(parts)]
    return tuple(count / size for count, size in zip(counts, sizes, strict=True))


def fingerprint(key: bytes) -> str:
    """A key as people compare it: the first 16 digits, in groups of four."""
    digits = key.hex()[:16]
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))
