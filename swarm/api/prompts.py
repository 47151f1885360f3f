"""What a wish asks for as a model reads it: the token ids of a conversation or of a text."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.engine import Engine
from engine.errors import TemplateError
from engine.template import Prompt
from swarm.api.errors import ApiError, bad
from swarm.api.messages import with_text_arguments
from swarm.api.wishes import ChatWish, TextWish


def chat_prompt(engine: Engine, wish: ChatWish) -> Prompt:
    """A conversation in the model's template. TemplateError; ApiError: the model has no tokenizer."""
    if not engine.has_tokenizer:
        raise _no_tokenizer("cannot chat; give token ids to /v1/completions", "messages")

    def render(messages: Sequence[Mapping[str, Any]]) -> Prompt:
        return engine.template.prompt(messages, tools=wish.tools or None, **wish.template)

    try:
        return render(wish.messages)
    except TemplateError:
        if not any("tool_calls" in message for message in wish.messages):
            raise
        # DeepSeek's templates want the arguments of calls as text, most others as objects.
        return render([with_text_arguments(message) for message in wish.messages])


def text_prompts(engine: Engine, wish: TextWish) -> list[Prompt]:
    """Texts, in which control tokens count, or token ids, to go on from. ApiError: one is empty, an id is no token, or
    it takes a tokenizer and the model has none."""
    if not engine.has_tokenizer and wish.common.stop:
        raise _no_tokenizer("looks for no stop; leave it out", "stop")
    return [_text_prompt(engine, prompt) for prompt in wish.prompts]


def _text_prompt(engine: Engine, prompt: str | tuple[int, ...]) -> Prompt:
    if isinstance(prompt, str):
        if not engine.has_tokenizer:
            raise _no_tokenizer("cannot read a text; give token ids", "prompt")
        ids = engine.tokenizer.encode_prompt(prompt)
        if not ids:
            raise bad("The prompt is empty; give at least one token.", "prompt")
        return Prompt(prompt, ids)
    wrong = next((ident for ident in prompt if ident >= engine.model.vocab_size), None)
    if wrong is not None:
        raise bad(f"{wrong} is no token of this model; it has {engine.model.vocab_size:,}.", "prompt")
    return Prompt(engine.tokenizer.decode(prompt) if engine.has_tokenizer else "", list(prompt))


def _no_tokenizer(trouble: str, param: str) -> ApiError:
    return bad(
        f"This model has no tokenizer, so it {trouble}, or have whoever shares the model put its tokenizer.json into "
        "its directory.",
        param,
        "no_tokenizer",
    )
