"""Where the models of a server come from: a swarm that was joined, its bytes and its donors."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.engine import Engine, Options
from engine.errors import EngineError
from engine.numerics import Weights
from swarm.api.libraries import least, need_of
from swarm.api.shelf import Listed, Need, News
from swarm.errors import SwarmError
from swarm.peers.models import ModelInfo, OpenModel, PeerView, WebView, state_of
from swarm.peers.network import NetworkThread
from swarm.peers.partner import Remote
from swarm.peers.pool import Pool
from swarm.peers.remote import RemoteStats, Rules
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
        self._pool: Pool | None = None
        self._stats: RemoteStats | None = None
        self._loaded: dict[str, OpenModel] = {}
        self._looked_at: set[bytes] = set()
        self._later: dict[str, bytes] = {}
        """The roots of later versions that are not used yet, by name."""
        self._news: dict[str, str] = {}

    def models(self) -> tuple[Listed, ...]:
        """What the tracker lists now; when it is away, what was accepted here."""
        session = self._session
        if not session.online:
            self._network.call(session.connect)
        return tuple(_listed(info, session.online) for info in self._network.call(session.models))

    def need(self, name: str) -> Need:
        """See `swarm.api.shelf.Library`; fetches the headers of the model's files."""
        return need_of(self._opened(name).source, self._asking.weights)

    def open(self, name: str, experts_bytes: int | None) -> Engine:
        """See `swarm.api.shelf.Library`."""
        found, asking = self._opened(name), self._asking
        engine = Engine.open(
            found.source,
            Options(asking.weights, least(experts_bytes, asking.expert_ram_bytes), home().packed),
        )
        if asking.donors:
            try:
                remote = self._network.call(self._session.experts, found, engine.bank, asking.rules)
            except BaseException:
                engine.close()
                raise
            engine.experts = remote
            self._pool, self._stats = (
                remote.pool,
                remote.stats,
            )  # and not its bank, which would stay in memory
        self._loaded[name] = found
        self._later.pop(name, None)
        self._news.pop(name, None)
        return engine

    def renewed(self) -> tuple[News, ...]:
        """See `swarm.api.shelf.Library`. Raises SwarmError.

        A later version is usable once its bytes are there, its manifest is accepted and its headers are understood;
        until then it is looked at again each time.
        """
        if not self._session.online:
            self._network.call(self._session.connect)
        told = []
        for name, model in list(self._loaded.items()):
            found = self._network.call(newer, self._session, model, self._looked_at)
            if found is not None:
                self._later[name] = found.root
            news = self._news_of(model) if name in self._later else None
            if news is not None and news.text != self._news.get(name):
                self._news[name] = news.text
                told.append(news)
        return tuple(told)

    def _news_of(self, model: OpenModel) -> News | None:
        """What to tell of the later version of a model; None when it is not there any more, or in use."""
        name, old = model.info.name, model.info.version
        infos = self._network.call(self._session.models) if self._session.online else ()
        later = next(
            (info for info in infos if (info.name, info.root) == (name, self._later.get(name))), None
        )
        if later is None:
            return None
        problem = self._problem(later)
        if self._loaded.get(name) is not model:
            return None
        if problem:
            text = (
                f"{name} has a new version, {later.version}, that cannot be used yet: {problem.rstrip('.')}. Replies "
                f"are still made with version {old}."
            )
        else:
            del self._later[name]
            text = (
                f"{name} has a new version, {later.version}, which new replies are made with; those under way end with "
                f"version {old}."
            )
        return News(name, later.version, not problem, text)

    def _problem(self, later: ModelInfo) -> str:
        """What keeps a later version from being used; empty: nothing. Accepts its manifest."""
        if missing := _listed(later, online=True).missing:
            return missing
        try:
            self.need(later.name)
        except (SwarmError, EngineError, OSError) as error:
            return str(error)
        return ""

    def swarm(self) -> Mapping[str, object]:
        """Who serves bytes, who runs experts, and how many are ready for each expert. Keys are shortened."""
        now = self._session.snapshot()
        peers = [_giver(peer.key.hex()[:8], "bytes", peer) for peer in now.peers]
        peers += [_giver(web.name, "web", web) for web in now.web]
        experts: tuple[tuple[int, ...], ...] = ()
        if self._pool is not None:
            pool = self._pool
            remotes = list(pool.remotes.values())
            peers += [_donor(remote) for remote in remotes]
            experts = count_replicas([remote.ready for remote in remotes if not remote.banned], pool.layout)
        return {
            "link": "online" if now.online else "offline",
            "problem": now.problem,
            "news": list(self._news.values()),
            "address": now.tracker,
            "operator": now.operator.hex()[:16] if now.operator else "",
            "model": now.model,
            "fetched_bytes": now.progress.verified_bytes,
            "wanted_bytes": now.progress.wanted_bytes,
            "bytes_per_s": now.bytes_per_s,
            "calls": self._stats.calls if self._stats else 0,
            "remote_calls": self._stats.remote_calls if self._stats else 0,
            "peers": peers,
            "experts": experts,
        }

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
