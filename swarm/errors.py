"""The root of every error the swarm raises, and the cleaning of text that others wrote.

An error's docstring is its message: the first paragraph is a template, filled with the keyword fields the
error is raised with, and names the culprit and the remedy. What follows the first paragraph is for readers
of the code. Fields often hold what a peer sent, so each is cleaned before it enters the message.
"""

import re
from typing import ClassVar

_BIDI_AND_TAGS = "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
# C0 and C1 controls, surrogates, line and paragraph separators, direction overrides, invisible tags.
_UNSAFE = re.compile(f"[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\u00ad\u2028\u2029{_BIDI_AND_TAGS}]")
_UNSAFE_BUT_LINES = re.compile(
    f"[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff\u00ad\u2028\u2029{_BIDI_AND_TAGS}]"
)
_SHOWN_KEY_CHARS = 16


def clean_text(text: str, *, limit: int | None = None, lines: bool = False) -> str:
    """Makes a stranger's text harmless to a terminal.

    Control characters (escape sequences begin with one), direction overrides, lone surrogates and invisible
    tags become U+FFFD; joiners that emoji and scripts need stay. A tab or line end becomes a space unless
    ``lines`` keeps them. Text longer than ``limit`` characters ends in an ellipsis.
    """
    if lines:
        text = _UNSAFE_BUT_LINES.sub("\ufffd", text.replace("\r\n", "\n"))
    elif not text.isprintable():
        text = _UNSAFE.sub("\ufffd", text.replace("\r\n", " ").translate({9: " ", 10: " ", 13: " "}))
    if limit is not None and len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    return text


def show(value: object) -> str:
    """A field as a person reads it: bytes as the start of their hexadecimal form, anything else cleaned."""
    if isinstance(value, bytes | bytearray | memoryview):
        digits = bytes(value[:64]).hex()
        return digits if len(digits) <= _SHOWN_KEY_CHARS else digits[:_SHOWN_KEY_CHARS] + "…"
    return clean_text(str(value), limit=500)


class SwarmError(Exception):
    """Something in the swarm went wrong."""

    code: ClassVar[str] = "swarm-error"
    """The error's name on the wire and in JSON: the class's name in kebab case."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        template = " ".join((type(self).__doc__ or self.code).strip().split("\n\n")[0].split())
        super().__init__(template.format_map({name: show(value) for name, value in fields.items()}))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[SwarmError], fields: dict[str, object]) -> SwarmError:
    return kind(**fields)


def why(error: BaseException) -> str:
    """The bare reason of an error, to be told within another's message that names the culprit already."""
    reason = error.fields.get("reason") if isinstance(error, SwarmError) else None
    return why(reason) if isinstance(reason, BaseException) else str(reason or error)
