"""Where the models of a server come from: a swarm that was joined, its bytes and its donors."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from engine.engine import Engine, Options
from engine.experts import Experts
from engine.numerics import Weights
from swarm.api.libraries import least, need_of
from swarm.api.shelf import Listed, Need
from swarm.peers.models import ModelInfo, OpenModel, PeerView, WebView, state_of
from swarm.peers.network import NetworkClosed, NetworkThread
from swarm.peers.partner import Remote
from swarm.peers.remote import RemoteExperts, Rules
from swarm.peers.replication import count_replicas
from swarm.peers.session import Session
from swarm.peers.settings import home
from swarm.peers.versions import newer


@dataclass(frozen=True)
class Asking:
    """How models are held, and how donors are asked. `donors`: whether they are asked at all."""

    rules: Rules
    weights: Weights = "auto"
    expert_ram_bytes: int | None = None
    donors: bool = True


class JoinedSwarm:
    """The models of a swarm; see `swarm.api.shelf.Library`. Called in threads that may block."""

    def __init__(self, network: NetworkThread, session: Session, asking: Asking) -> None:
        self._network = network
        self._session = session
        self._asking = asking
        self._loaded: dict[str, tuple[OpenModel, Experts]] = {}
        """What is in memory, as it was loaded."""
        self._looked_at: set[bytes] = set()
        self._news: dict[str, str] = {}
        """What was told of models since they were loaded; of those that are not any more, too."""

    def models(self) -> tuple[Listed, ...]:
        """What the tracker lists now; when it is away, what was accepted here."""
        session = self._session
        if not session.online:
            self._network.call(session.connect)
        return tuple(_listed(info, session.online) for info in self._network.call(session.models))

    def need(self, name: str) -> Need:
        """See `swarm.api.shelf.Library`; fetches the headers of the model's files."""
        try:
            return need_of(self._opened(name).source, self._asking.weights)
        finally:
            self._tell_of_last()

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        """See `swarm.api.shelf.Library`."""
        found, asking = self._opened(name), self._asking
        options = Options(asking.weights, least(experts_bytes, asking.expert_ram_bytes), home().packed)
        with ExitStack() as undo:
            undo.callback(self._tell_of_last)
            engine = undo.enter_context(Engine.open(found.source, options))
            if asking.donors:
                engine.experts = self._network.call(self._session.experts, found, engine.bank, asking.rules)
            undo.pop_all()
        self._loaded[name] = found, engine.experts
        engine.at_end.callback(self._closed, name, engine.experts)
        self._news.pop(name, None)
        return engine

    def renewed(self) -> tuple[str, ...]:
        """What to tell of models in memory that the swarm has in a later version now; each is told once.

        Raises SwarmError.
        """
        told = []
        for name, (model, _) in list(self._loaded.items()):
            later = self._network.call(newer, self._session, model, self._looked_at)
            if later is not None and self._loaded.get(name, (None,))[0] is model:  # not unloaded meanwhile
                self._news[name] = (
                    f"{name} has a new version, {later.version}; this server speaks with version "
                    f"{model.info.version} until it is started again."
                )
                told.append(self._news[name])
        return tuple(told)

    def swarm(self) -> Mapping[str, object]:
        """Who serves bytes, who runs experts, and how many are ready for each expert. Keys are shortened."""
        now = self._session.snapshot()
        peers = [_giver(peer.key.hex()[:8], "bytes", peer) for peer in now.peers]
        peers += [_giver(web.name, "web", web) for web in now.web]
        experts: tuple[tuple[int, ...], ...] = ()
        asked = self._last_asked()
        if asked is not None:
            pool = asked.pool
            remotes = list(pool.remotes.values())
            peers += [_donor(remote) for remote in remotes]
            experts = count_replicas([remote.ready for remote in remotes if not remote.banned], pool.layout)
        return {
            "link": "online" if now.online else "offline",
            "problem": now.problem,
            "news": [news for name, news in list(self._news.items()) if name in self._loaded],
            "address": now.tracker,
            "operator": now.operator.hex()[:16] if now.operator else "",
            "model": now.model,
            "fetched_bytes": now.progress.verified_bytes,
            "wanted_bytes": now.progress.wanted_bytes,
            "bytes_per_s": now.bytes_per_s,
            "calls": asked.stats.calls if asked else 0,
            "remote_calls": asked.stats.remote_calls if asked else 0,
            "peers": peers,
            "experts": experts,
        }

    def _last_asked(self) -> RemoteExperts | None:
        """The experts of the model that was loaded last, if donors are asked for them."""
        loaded = [experts for _, experts in list(self._loaded.values())]
        return next((one for one in reversed(loaded) if isinstance(one, RemoteExperts)), None)

    def _tell_of_last(self) -> None:
        """What is told of the swarm's bytes is of the model that was loaded last, if there is one, as donors are."""
        loaded = [model for model, _ in list(self._loaded.values())]
        if loaded:
            self._session.current = loaded[-1]

    def _closed(self, name: str, experts: Experts) -> None:
        """A model is not in memory any more."""
        self._loaded.pop(name, None)
        self._tell_of_last()
        if isinstance(experts, RemoteExperts):
            with suppress(NetworkClosed):
                self._network.call(self._session.part_with, experts)

    def _opened(self, name: str) -> OpenModel:
        return self._network.call(self._session.open_model, name)


def _listed(info: ModelInfo, online: bool) -> Listed:
    missing = ""
    if online and not info.complete and not info.accepted:
        lacking = info.chunks - info.covered_chunks
        missing = f"{100 * lacking // max(info.chunks, 1)} % of its bytes are held by no peer"
    return Listed(info.name, info.size_bytes, info.issued_s or 0, info.operator.hex()[:16], missing)


def _giver(name: str, role: str, giver: PeerView | WebView) -> Mapping[str, object]:
    """A peer or a web server that gives bytes."""
    return {"name": name, "role": role, "bytes": giver.given_bytes, "calls": 0, "state": state_of(giver)}


def _donor(remote: Remote) -> Mapping[str, object]:
    sent, received = remote.transferred()
    return {
        "name": remote.key.hex()[:8],
        "role": "experts",
        "bytes": sent + received,
        "calls": remote.tally.pairs,
        "ms": 1000 * remote.pace.expected_s(1) if remote.pace.measured else None,
        "state": "banned" if remote.banned else "ok" if remote.usable else "away",
    }
