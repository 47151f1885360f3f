"""A conversation as the text, and the tokens, that a model was trained on: the model's own chat template.

What people and tools wrote must not pass for the template's marks. So, before rendering, the first
character of each control token inside a message (and of a beginning of one at its end, which a neighbour
might complete) is replaced by a stand-in of the same length; the tokenizer puts it back and reads such text
as plain text (`Tokenizer.encode_rendered`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from engine.checkpoint import read_json
from engine.errors import TemplateError
from engine.sandbox import compile_template
from engine.source import Source, read_whole
from engine.tokenizer import Tokenizer

LARGEST_TEMPLATE_BYTES = 4 << 20
STAND_INS = range(0x100000, 0x10F000)  # private-use code points
ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

Message = Mapping[str, Any]  # {"role": …, "content": …, and whatever the template understands}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: `text` as a reader would see it, `ids` as the model does."""

    text: str
    ids: list[int]


class ChatTemplate:
    """A model's chat template together with its tokenizer."""

    def __init__(self, source: str, tokenizer: Tokenizer, named: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._render = compile_template(source)
        with_tools = (named or {}).get("tool_use")
        self._render_tools = compile_template(with_tools) if with_tools else self._render
        self.takes_tools = bool(with_tools) or re.search(r"\btools\b", source) is not None
        self._special = {
            key: token
            for key in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (token := _token_text(tokenizer.config.get(key))) is not None
        }

    @classmethod
    def open(cls, source: Source, tokenizer: Tokenizer, override: str | None = None) -> Self | None:
        """The model's template, from chat_template.jinja or tokenizer_config.json.

        Without one: ChatML if the tokenizer has its marks, else None (a base model, which completes text).
        """
        named = _named_templates(source, tokenizer)
        text = override or named.get("default")
        if text is None and len(named) == 1:
            text = next(iter(named.values()))
        if text is None and {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.control):
            text = CHATML
        return None if text is None else cls(text, tokenizer, {} if override else named)

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation: bool = True,
        **variables: Any,
    ) -> Prompt:
        """The conversation up to where the assistant speaks next (`generation`). Raises TemplateError.

        Further `variables` go to the template as they are (`enable_thinking=False`,
        `reasoning_effort="low"` …).
        """
        for message in messages:
            role = message.get("role")
            if not isinstance(role, str) or not ROLE.fullmatch(role):
                raise TemplateError(f"{str(role)[:40]!r} is no role; use system, user or assistant")
        breaker = Breaker(self._tokenizer, [messages, tools])
        render = self._render_tools if tools else self._render
        rendered = render(
            {
                **self._special,
                **variables,
                "messages": [
                    {key: value if key == "role" else breaker.apply(value) for key, value in message.items()}
                    for message in messages
                ],
                "tools": breaker.apply(list(tools)) if tools else None,
                "documents": None,
                "add_generation_prompt": generation,
            }
        )
        ids = self._tokenizer.encode_rendered(rendered, breaker.stand_ins)
        return Prompt(breaker.restore(rendered), ids)


class Breaker:
    """Breaks control tokens in what people wrote, and knows how to mend them."""

    def __init__(self, tokenizer: Tokenizer, values: Sequence[Any]) -> None:
        controls = sorted(tokenizer.control, key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, controls))) if controls else None
        self._beginnings = {token[:length] for token in controls for length in range(1, len(token))}
        self._longest = max(map(len, controls), default=0)
        taken = set().union(*(_characters(value) for value in values))
        free = (chr(code) for code in STAND_INS if chr(code) not in taken)
        firsts = sorted({token[0] for token in controls if token})
        self._stand_in = dict(zip(firsts, free, strict=False))
        if len(self._stand_in) < len(firsts):
            raise TemplateError("the conversation uses nearly every private-use character; remove some")
        self.stand_ins = {stand_in: first for first, stand_in in self._stand_in.items()}

    def apply(self, value: Any) -> Any:
        """The value with every string in it broken; lists and mappings are copied."""
        if isinstance(value, str):
            return self._break(value)
        if isinstance(value, Mapping):
            return {key: self.apply(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.apply(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """The text with every stand-in turned back."""
        return text.translate({ord(stand_in): first for stand_in, first in self.stand_ins.items()})

    def _break(self, text: str) -> str:
        if self._whole is None:
            return text
        text = self._whole.sub(lambda found: self._stand_in[found.group()[0]] + found.group()[1:], text)
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                start = len(text) - length
                return text[:start] + self._stand_in[text[start]] + text[start + 1 :]
        return text


def _characters(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(value)
    if isinstance(value, Mapping):
        return set().union(*(_characters(item) for pair in value.items() for item in pair))
    if isinstance(value, list | tuple):
        return set().union(*(_characters(item) for item in value))
    return set()


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _named_templates(source: Source, tokenizer: Tokenizer) -> dict[str, str]:
    """All templates of the model by name; the unnamed one is "default"."""
    named: dict[str, str] = {}
    configured = tokenizer.config.get("chat_template")
    if configured is None:
        configured = (read_json(source, "chat_template.json") or {}).get("chat_template")
    if isinstance(configured, str):
        named["default"] = configured
    elif isinstance(configured, list):
        for entry in configured:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = entry["template"]
    elif isinstance(configured, Mapping):
        named.update({str(name): text for name, text in configured.items() if isinstance(text, str)})
    data = read_whole(source, "chat_template.jinja", LARGEST_TEMPLATE_BYTES)
    if data is not None:
        named["default"] = data.decode("utf-8", "replace")
    return named
