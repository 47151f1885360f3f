"""How the tokens of a model read. Those of a model without a tokenizer read as nothing, and are told by their ids."""

from typing import Protocol

from engine.engine import Engine


class Stream(Protocol):
    """The text of tokens that come one by one."""

    def push(self, ident: int) -> str:
        """What one more token adds."""


class Spelling(Protocol):
    """What of a tokenizer it takes to write down what a model says."""

    def stream(self) -> Stream:
        """For one text."""

    def is_special(self, ident: int) -> bool:
        """Whether a token is left out of a text."""

    def text_of(self, ident: int) -> str:
        """A token as its definition writes it."""


class Unspelled:
    """See `Spelling`: no token reads as anything."""

    def stream(self) -> "Unspelled":
        """See `Spelling`."""
        return self

    def push(self, ident: int) -> str:
        """Nothing."""
        return ""

    def is_special(self, ident: int) -> bool:
        """No."""
        return False

    def text_of(self, ident: int) -> str:
        """Nothing."""
        return ""


def spelling(engine: Engine) -> Spelling:
    """How a model's tokens read."""
    return engine.tokenizer if engine.has_tokenizer else Unspelled()


def token_name(engine: Engine, token: int) -> str:
    """A token as text; as bytes, as OpenAI writes them, where it holds part of a character; as its id, as vLLM writes
    it, where the model has no tokenizer."""
    if not engine.has_tokenizer:
        return f"token_id:{token}"
    octets = engine.tokenizer.bytes_of(token)
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{octet:02x}" for octet in octets)
