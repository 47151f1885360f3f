"""Counts and times for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "swarm_requests", "Requests answered.", ["path", "status"], registry=self._registry
        )
        self._prompt = Counter(
            "swarm_prompt_tokens", "Tokens of prompts.", ["model"], registry=self._registry
        )
        self._reply = Counter("swarm_reply_tokens", "Tokens of replies.", ["model"], registry=self._registry)
        self._first = Histogram(
            "swarm_first_token_seconds",
            "From a request's prompt to its first token.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._gauges = {
            name: Gauge(f"swarm_{name}", text, registry=self._registry)
            for name, text in (
                ("slots", "Replies that can be made at once."),
                ("running", "Replies being made."),
                ("waiting", "Replies that wait for a slot."),
                ("kept_bytes", "Memory of prompts kept for reuse."),
                ("models_loaded", "Models in memory."),
                ("models_bytes", "Memory of models."),
                ("expert_hits", "Experts of the models in memory that were there when asked for."),
                ("expert_misses", "Experts that had to be read first."),
                ("expert_read_bytes", "Bytes of experts read."),
                ("expert_wait_seconds", "Time in which nothing could be computed for want of an expert."),
            )
        }

    def answered(self, path: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(path, str(status)).inc()

    def first_token(self, seconds: float) -> None:
        """A reply began."""
        self._first.observe(seconds)

    def done(self, model: str, prompt: int, reply: int) -> None:
        """The replies to a request are done, or given up."""
        self._prompt.labels(model).inc(prompt)
        self._reply.labels(model).inc(reply)

    def text(self, **gauges: float) -> bytes:
        """All numbers in Prometheus's text form; `gauges` by name as they are now."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self._registry)
