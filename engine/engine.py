"""A model ready to speak: checkpoint, family, dense weights, experts, tokenizer and template, put
together."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.checkpoint import Checkpoint, read_json
from engine.errors import SettingsError, TemplateError, TokenizerError
from engine.expert_bank import ExpertBank, LocalExperts
from engine.experts import ExpertLayout, Experts
from engine.loader import Loader
from engine.models import Family, Model, family_of
from engine.numerics import WEIGHTS, Weights
from engine.source import Source
from engine.template import ChatTemplate
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is held in memory.

    expert_ram_bytes: memory for routed experts (None: all of them). packed_cache: a directory for experts
    in packed form, of models whose experts do not all fit in memory, so that reading them again needs no
    conversion (None: do not keep any); it is never inside a model's directory.
    """

    weights: Weights = "auto"
    expert_ram_bytes: int | None = None
    packed_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise SettingsError(f"weights are {', '.join(WEIGHTS)}; {self.weights!r} is none of them")


class Engine:
    """An opened model. `experts` may be replaced, by experts on peers for example; `bank` is what runs them
    here."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: Family[Any],
        config: Any,
        model: Model,
        bank: ExpertBank,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        generation: Mapping[str, Any],
    ) -> None:
        self.checkpoint = checkpoint
        self.family = family
        self.config = config
        self.model = model
        self.bank = bank
        self.experts: Experts = LocalExperts(bank)
        self.at_end = ExitStack()
        """What ends with the model, before its bank does."""
        self.generation = generation
        self.stop_ids = stop_ids(checkpoint.config, generation, tokenizer)
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def open(
        cls,
        source: Source,
        options: Options | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Opens a model; `progress(done, total)` hears of bytes of dense weights. Raises EngineError."""
        options = options or Options()
        checkpoint = Checkpoint.open(source)
        source = checkpoint.source  # with the files that a GGUF file stands for
        family = family_of(checkpoint.config)
        config = family.parse(checkpoint.config)
        layout: ExpertLayout = family.experts(config)
        tokenizer = Tokenizer.open(source)
        template = None if tokenizer is None else ChatTemplate.open(source, tokenizer)

        def skipped(name: str) -> bool:
            return family.skips(config, name)

        bank = ExpertBank(checkpoint, layout, options.weights, options.expert_ram_bytes, options.packed_cache)
        bank.reader.keeps = bank.streams  # what fits is packed once, and need not take room on the disk
        loader = Loader(checkpoint, options.weights, progress)
        loader.prefetch(layout, skipped)
        model = family.build(config, loader)
        loader.finish(layout, skipped)
        generation = read_json(source, "generation_config.json") or {}
        return cls(checkpoint, family, config, model, bank, tokenizer, template, generation)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; TokenizerError when it has none."""
        if self._tokenizer is None:
            raise TokenizerError("the model has no tokenizer.json; only token ids can be given to it")
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be given to the model; token ids always can."""
        return self._tokenizer is not None

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; TemplateError when it has none."""
        if self._template is None:
            raise TemplateError(
                "the model has no chat template (a base model, it seems); use a chat model, "
                "or let it complete plain text"
            )
        return self._template

    @property
    def can_chat(self) -> bool:
        """Whether there are a tokenizer and a template."""
        return self._template is not None

    def close(self) -> None:
        """Ends background reading; the model must not be used afterwards. Waits for what is `at_end`."""
        try:
            self.at_end.close()
        finally:
            self.bank.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stop_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Tokenizer | None
) -> frozenset[int]:
    """Every token that ends a reply: those of generation_config.json, config.json and the tokenizer."""
    text = config.get("text_config")
    values = [generation.get("eos_token_id"), config.get("eos_token_id")]
    values.append(text.get("eos_token_id") if isinstance(text, Mapping) else None)
    found: set[int] = set(tokenizer.end_ids if tokenizer is not None else ())
    for value in values:
        found.update(item for item in (value if isinstance(value, list) else [value]) if type(item) is int)
    return frozenset(found)
