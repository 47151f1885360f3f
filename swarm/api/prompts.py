"""What a wish asks for as a model reads it: the token ids of a conversation or of a text."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.engine import Engine
from engine.errors import TemplateError, TokenizerError
from engine.template import Prompt
from swarm.api.errors import bad
from swarm.api.messages import with_text_arguments
from swarm.api.wishes import ChatWish


def chat_prompt(engine: Engine, wish: ChatWish) -> Prompt:
    """A conversation in the model's template. TemplateError."""

    def render(messages: Sequence[Mapping[str, Any]]) -> Prompt:
        return engine.template.prompt(messages, tools=wish.tools or None, **wish.template)

    try:
        return render(wish.messages)
    except TemplateError:
        if not any("tool_calls" in message for message in wish.messages):
            raise
        # DeepSeek's templates want the arguments of calls as text, most others as objects.
        return render([with_text_arguments(message) for message in wish.messages])


def text_prompt(engine: Engine, prompt: str | tuple[int, ...]) -> Prompt:
    """A text, in which control tokens count, or token ids, to go on from. ApiError: it is empty, an id is no token, or
    the model has no tokenizer."""
    try:
        tokenizer = engine.tokenizer
    except TokenizerError:
        raise bad(
            "This model has no tokenizer, so what it says cannot be written as text. Put its tokenizer.json into its "
            "directory.",
            "model",
            "no_tokenizer",
        ) from None
    if isinstance(prompt, str):
        ids = tokenizer.encode_prompt(prompt)
        if not ids:
            raise bad("The prompt is empty; give at least one token.", "prompt")
        return Prompt(prompt, ids)
    wrong = next((ident for ident in prompt if ident >= engine.model.vocab_size), None)
    if wrong is not None:
        raise bad(f"{wrong} is no token of this model; it has {engine.model.vocab_size:,}.", "prompt")
    return Prompt(tokenizer.decode(prompt), list(prompt))
