"""Where a model comes from: a directory on this machine, or a swarm. The rest of the backend is the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from engine.engine import Engine
from engine.engine import Options as EngineOptions
from engine.memory import available_bytes
from engine.models import family_of
from engine.numerics import Weights
from swarm.peers.settings import home
from tui.backend import Donation
from tui.messages import Connected, Event, Notice, Progress
from tui.options import Options
from tui.problems import NotThere
from tui.views import DonationView, ModelView, ReplyStats, SwarmView

Emit = Callable[[Event], None]


class Place(Protocol):
    """What a backend needs of the place its models come from. Methods block; errors are exceptions."""

    def connect(self, emit: Emit) -> Connected:
        """Reach it."""

    def models(self) -> tuple[ModelView, ...]:
        """What there is."""

    def open(self, model: str, emit: Emit) -> tuple[Engine, ModelView]:
        """A model, ready to speak. NotThere: it cannot chat."""

    def snapshot(self) -> SwarmView:
        """The network now."""

    def counters(self, stats: ReplyStats) -> ReplyStats:
        """The numbers of a reply, with what the network did for it since `begin`."""

    def news(self) -> list[Notice]:
        """What happened in the network since the last time."""

    def waiting(self) -> Progress | None:
        """What is waited for, if bytes are on their way."""

    def begin(self) -> None:
        """A reply begins: its counters start at nothing."""

    def stop(self) -> None:
        """End what is waiting."""

    def tune(self, name: str, value: str) -> str:
        """Change hedge, audit, drafts or expert-ram; the value now in force. ValueError: a bad one."""

    def donate(self, wish: Donation) -> DonationView:
        """Lend; what is lent now."""

    def is_away(self, error: BaseException) -> bool:
        """Whether an error means that the network is at fault, so that asking again later may help."""

    def close(self) -> None:
        """Leave."""


def must_chat(engine: Engine, model: str) -> None:
    """Raises NotThere for a base model, and for one without a tokenizer."""
    if not engine.has_tokenizer:
        raise NotThere(
            f"{model} has no tokenizer, so it cannot chat: whoever shares it has to put its tokenizer.json into its "
            "directory."
        )
    if not engine.can_chat:
        raise NotThere(f"{model} is a base model without a chat template; it cannot chat.")


def engine_options(options: Options) -> EngineOptions:
    """How the engine holds a model: experts in 6/10 of the free memory, unless the user says how much."""
    ram = options.expert_ram_bytes
    ram = available_bytes() * 6 // 10 if ram is None else ram
    return EngineOptions(cast(Weights, options.weights), ram, home().packed)


def expert_shape(config: Mapping[str, Any]) -> tuple[str, int, int]:
    """Family, layers with experts, experts a layer. EngineError: unknown or contradictory."""
    family = family_of(config)
    layout = family.experts(family.parse(config))
    return family.name, len(layout.layers), layout.experts_per_layer


def storage_format(config: Mapping[str, Any]) -> str:
    """How a config.json says that the weights are stored."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        quantization = part.get("quantization_config")
        if isinstance(quantization, Mapping):
            return str(quantization.get("quant_method", ""))
        if kind := part.get("torch_dtype") or part.get("dtype"):
            return str(kind).replace("bfloat16", "bf16").replace("float", "f")
    return ""
