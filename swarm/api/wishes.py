"""What a client asks for: the bodies of chat and text completions, decoded once into frozen types.

Fields that only steer OpenAI's own service (user, store, metadata …) are passed over; what would change the
answer and cannot be done here is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.sampling import MASK64
from swarm.api.errors import bad
from swarm.api.fields import Fields, finite, whole_text
from swarm.api.messages import parse_message
from swarm.api.toolchoice import chosen_tools

MOST_CHOICES = 128
MOST_STOPS = 16
MOST_BIASES = 4096
MOST_TOP_LOGPROBS = 20
MOST_PROMPTS = 128
DEFAULT_TEXT_TOKENS = 16  # of a text completion, as OpenAI documents
MOST_TOKENS = 1 << 24
MOST_SEED = (1 << 63) - 1
RESERVED = frozenset({"self", "messages", "tools", "documents", "generation", "add_generation_prompt"})
"""Variables of a template that are said elsewhere in a request."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What chat and text completions have in common. `sampling`: what was said, by `Sampling`'s names."""

    model: str | None
    sampling: Mapping[str, Any]
    max_tokens: int | None
    stop: tuple[str, ...]
    choices: int
    stream: bool
    include_usage: bool
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class ChatWish:
    """A chat completion. `must_call`: the tools of which the reply must call one; empty: it need not.
    `parallel_calls`: whether it may make several calls. `schema`: the JSON schema that the reply must follow."""

    common: Wish
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    must_call: tuple[str, ...] = ()
    parallel_calls: bool = True
    schema: Mapping[str, Any] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextWish:
    """A text completion; each prompt is a text or token ids."""

    common: Wish
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool = False


def parse_chat(body: Any) -> ChatWish:
    """A chat completion's body. ApiError: what is wrong with it."""
    fields = Fields(body)
    for key in ("functions", "function_call", "audio", "prediction", "web_search_options"):
        if fields.has(key):
            raise bad(f"{key} is not supported here; leave it out.", key, "unsupported_parameter")
    modalities = fields.items("modalities")
    if modalities not in (None, ["text"]):
        raise bad("Only text can be answered with; leave modalities out.", "modalities")
    messages = fields.items("messages", least=1)
    if messages is None:
        raise bad("messages is missing; give at least one message.", "messages")
    limit = fields.integer("max_completion_tokens", 1, MOST_TOKENS)
    if limit is None:
        limit = fields.integer("max_tokens", 1, MOST_TOKENS)
    tools, must_call = chosen_tools(fields)
    schema = _schema(fields)
    if must_call and schema is not None:
        raise bad("A reply cannot both call a tool and follow response_format.", "tool_choice")
    return ChatWish(
        common=_common(fields, limit, _chat_logprobs(fields)),
        messages=tuple(parse_message(item, f"messages[{index}]") for index, item in enumerate(messages)),
        tools=tools,
        must_call=must_call,
        parallel_calls=not fields.has("parallel_tool_calls") or fields.flag("parallel_tool_calls"),
        schema=schema,
        template=_template_variables(fields),
    )


def _chat_logprobs(fields: Fields) -> int | None:
    """How many alternatives to each token are wanted; None: no probabilities."""
    top = fields.integer("top_logprobs", 0, MOST_TOP_LOGPROBS)
    wanted = fields.flag("logprobs")
    if top is not None and not wanted:
        raise bad("top_logprobs needs logprobs: true.", "top_logprobs")
    return (top or 0) if wanted else None


def _template_variables(fields: Fields) -> Mapping[str, Any]:
    template = fields.object("chat_template_kwargs")
    variables = dict(template.everything()) if template is not None else {}
    for key in RESERVED & variables.keys():
        raise bad(f"chat_template_kwargs cannot set {key}.", "chat_template_kwargs")
    effort = fields.choice("reasoning_effort", ("none", "minimal", "low", "medium", "high", "xhigh"))
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
    return variables


def parse_text(body: Any) -> TextWish:
    """A text completion's body. ApiError: what is wrong with it."""
    fields = Fields(body)
    if fields.text("suffix"):
        raise bad("suffix is not supported: these models only continue a text.", "suffix")
    choices = fields.integer("n", 1, MOST_CHOICES) or 1
    best_of = fields.integer("best_of", 1, MOST_CHOICES)
    if best_of is not None and best_of != choices:
        raise bad("best_of is not supported; ask for n choices.", "best_of")
    echo = fields.flag("echo")
    limit = fields.integer("max_tokens", 0 if echo else 1, MOST_TOKENS)
    common = _common(
        fields,
        DEFAULT_TEXT_TOKENS if limit is None else limit,
        fields.integer("logprobs", 0, MOST_TOP_LOGPROBS),
    )
    return TextWish(common, _prompts(fields.get("prompt")), echo)


def _common(fields: Fields, max_tokens: int | None, logprobs: int | None) -> Wish:
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise bad("stream_options needs stream: true.", "stream_options")
    return Wish(
        model=fields.text("model", limit=500),
        sampling=_sampling(fields),
        max_tokens=max_tokens,
        stop=_stops(fields.get("stop")),
        choices=fields.integer("n", 1, MOST_CHOICES) or 1,
        stream=stream,
        include_usage=options.flag("include_usage") if options is not None else False,
        logprobs=logprobs,
    )


def _sampling(fields: Fields) -> Mapping[str, Any]:
    seed = fields.integer("seed", -MOST_SEED - 1, MOST_SEED)
    top_k = fields.integer("top_k", -1, MOST_TOKENS)
    said = {
        "temperature": fields.number("temperature", 0.0, 100.0),
        "top_p": fields.number("top_p", 0.0, 1.0),
        "top_k": 0 if top_k == -1 else top_k,
        "min_p": fields.number("min_p", 0.0, 1.0),
        "repeat_penalty": fields.number(
            "repetition_penalty" if fields.has("repetition_penalty") else "repeat_penalty", 0.01, 100.0
        ),
        "presence_penalty": fields.number("presence_penalty", -2.0, 2.0),
        "frequency_penalty": fields.number("frequency_penalty", -2.0, 2.0),
        "seed": None if seed is None else seed & MASK64,
        "logit_bias": _biases(fields),
    }
    return {name: value for name, value in said.items() if value is not None}


def _biases(fields: Fields) -> Mapping[int, float] | None:
    given = fields.get("logit_bias")
    if given is None:
        return None
    if not isinstance(given, Mapping) or len(given) > MOST_BIASES:
        raise bad(f"logit_bias must be an object of at most {MOST_BIASES} token ids.", "logit_bias")
    biases: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise bad(f"logit_bias is keyed by token ids; {key[:40]!r} is none.", "logit_bias")
        biases[int(key)] = finite(value, f"logit_bias.{key}", -100.0, 100.0)
    return biases


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or len(given) > MOST_STOPS:
        raise bad(f"stop must be a string or a list of at most {MOST_STOPS}.", "stop")
    return tuple(stop for item in given if (stop := whole_text(item, "stop", 1000)))


def _schema(fields: Fields) -> Mapping[str, Any] | None:
    wanted = fields.object("response_format")
    if wanted is None:
        return None
    match wanted.choice("type", ("text", "json_object", "json_schema")):
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            given = wanted.object("json_schema")
            schema = given.get("schema") if given is not None else None
            if not isinstance(schema, Mapping):
                raise bad("response_format.json_schema.schema must be an object.", "response_format")
            return schema
        case "text":
            return None
    raise bad("response_format.type is missing.", "response_format")


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    if value is None:
        raise bad("prompt is missing; give a text or token ids.", "prompt")
    if isinstance(value, str):
        return (whole_text(value, "prompt"),)
    if not isinstance(value, list) or not value:
        raise bad("prompt must be a text, token ids, or a list of either.", "prompt")
    if _are_ids(value):
        return (tuple(value),)
    if len(value) > MOST_PROMPTS:
        raise bad(f"There can be at most {MOST_PROMPTS} prompts in a request.", "prompt")
    return tuple(
        tuple(item) if isinstance(item, list) and _are_ids(item) else whole_text(item, "prompt")
        for item in value
    )


def _are_ids(value: Sequence[Any]) -> bool:
    return bool(value) and all(type(item) is int and item >= 0 for item in value)
