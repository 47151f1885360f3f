"""Numbers for Prometheus: what a tracker, a maintainer, an executor or a donor did and does, read when asked for.

    with exposed(Address("127.0.0.1", 9300), executor_samples(executor), ...): ...

Nothing is counted twice: each sample is read from the object that keeps it. Keys, addresses and names of peers are
never among them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from swarm.errors import SwarmError
from swarm.peers.announce import Announcer
from swarm.peers.donor import Lending
from swarm.peers.executor import Executor
from swarm.peers.maintainer import Maintainer
from swarm.wire.address import Address
from tracker.server import Tracker


class CannotExpose(SwarmError):
    """Metrics cannot be offered at {address}: {reason}. Choose another place with --metrics [HOST:]PORT."""


class Sample(NamedTuple):
    """One number. A counter only grows."""

    name: str
    help: str
    value: float
    counter: bool = False


Samples: TypeAlias = Callable[[], Iterable[Sample]]


class Figures(Collector):
    """Reads its sources whenever it is scraped."""

    def __init__(self, sources: Iterable[Samples]) -> None:
        self._sources = tuple(sources)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """All samples now. Runs in the thread that answers the scrape: sources read single values only."""
        for source in self._sources:
            for sample in source():
                kind = CounterMetricFamily if sample.counter else GaugeMetricFamily
                yield kind(f"swarm_{sample.name}", sample.help, value=sample.value)


@contextmanager
def exposed(place: Address | None, *sources: Samples) -> Iterator[Address | None]:
    """Answers scrapes at a place (None: nowhere) for the length of a block; gives where, port 0 resolved.

    Raises:
        CannotExpose: the port is taken, or this machine has no such address.
    """
    if place is None:
        yield None
        return
    registry = CollectorRegistry()
    registry.register(Figures(sources))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    try:
        server, thread = start_http_server(place.port, place.host, registry)
    except OSError as error:
        raise CannotExpose(address=place, reason=error.strerror or error) from error
    try:
        yield Address(place.host, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def maintainer_samples(maintainer: Maintainer) -> Samples:
    """What is served of the bytes of models."""

    def read() -> Iterator[Sample]:
        served = maintainer.served
        yield Sample("chunks_served", "Chunks given to others.", served.chunks, counter=True)
        yield Sample("served_bytes", "Bytes of models given to others.", served.bytes, counter=True)
        yield Sample(
            "chunks_refused", "Requests for chunks that were not answered.", served.refused, counter=True
        )
        yield Sample("fetching_peers", "Peers that wait for a chunk now.", maintainer.busy_peers)
        yield Sample("served_models", "Models of which chunks are served.", len(maintainer.models))

    return read


def executor_samples(executor: Executor) -> Samples:
    """What is computed for others."""

    def read() -> Iterator[Sample]:
        done, turns = executor.done, executor.turns
        yield Sample("expert_calls", "Expert calls answered.", done.calls, counter=True)
        yield Sample(
            "expert_pairs", "Rows run through experts, counted once an expert.", done.pairs, counter=True
        )
        yield Sample("expert_calls_refused", "Expert calls refused.", done.refused, counter=True)
        yield Sample(
            "expert_calls_turned_away", "Calls turned away as busy.", turns.turned_away, counter=True
        )
        yield Sample("expert_clients", "Peers that were ever computed for.", len(done.clients))
        yield Sample("expert_queue", "Calls that wait for their turn.", turns.waiting)
        yield Sample("expert_service_seconds", "Moving average of what a call takes.", turns.service_s)
        yield Sample("expert_paused", "1 while the owner lets it rest.", float(executor.paused))

    return read


def tracker_samples(tracker: Tracker) -> Samples:
    """Who and what a tracker knows."""

    def read() -> Iterator[Sample]:
        yield Sample("tracker_peers", "Peers registered now.", len(tracker.registry))
        departures = tracker.registry.departures
        yield Sample("tracker_departures", "Peers that left or fell silent.", departures, counter=True)
        yield Sample("tracker_publications", "Manifests published.", tracker.catalogue.revision, counter=True)
        yield Sample("tracker_bans", "Peers banned for wrong answers.", tracker.judge.count)
        yield Sample("tracker_relay_streams", "Streams relayed now.", tracker.relay.streams)
        yield Sample("tracker_relayed_bytes", "Bytes relayed.", tracker.relay.relayed_bytes, counter=True)

    return read


def standing_samples(announcer: Callable[[], Announcer | None]) -> Samples:
    """How the tracker sees this peer."""

    def read() -> Iterator[Sample]:
        known = announcer()
        if known is not None:
            standing = known.standing
            yield Sample("registered", "1 while the tracker knows this peer.", float(standing.registered))
            yield Sample(
                "reachable", "1 while others reach this peer directly.", float(bool(standing.address))
            )

    return read


def lending_samples(lending: Lending) -> Samples:
    """What a donor was assigned and holds: experts, or chunks of a MiB."""

    def read() -> Iterator[Sample]:
        yield Sample("donated_assigned", "Experts or chunks the tracker assigned.", lending.assigned)
        yield Sample("donated_ready", "Experts or chunks that are answered for.", lending.ready)
        yield Sample("donated_resident", "Of these, experts in memory.", lending.resident)
        yield Sample("donor_paused", "1 while the owner lets it rest.", float(lending.state == "paused"))

    return read
