"""Text to tokens and back, through the `tokenizers` library.

Control tokens (start and end of a turn, "<think>", tool marks …) have meaning only where a template put
them. So there are two tokenizers: the model's own, and a twin in which each control token is spelled with a
secret character, one that occurs in no text given. What a user typed is read by the twin and can never
become a control token; the template's control tokens are respelled for it. Where no user typed one, the
model's own tokenizer reads the text as a whole, so the tokens are those of any other implementation.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Self

from tokenizers import Tokenizer as LibraryTokenizer

from engine import tiktoken
from engine.checkpoint import read_json
from engine.errors import TokenizerError
from engine.safetensors import refuse_pointer
from engine.source import Source, read_whole

LARGEST_TOKENIZER_BYTES = 512 << 20
SECRETS = range(0x10F000, 0x10FFFE)  # private-use code points
BYTES = {character: byte for byte, character in enumerate(tiktoken.byte_characters())}
"""In vocabularies of bytes."""
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte in vocabularies of text, …
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # … and a space there
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# What is bracketed like a mark is a control token even if the tokenizer does not call it special: <think>,
# [INST] …
MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|<[|｜].*[|｜]>", re.DOTALL)


class Tokenizer:
    """A model's tokenizer. `end_ids` are tokens that its own configuration calls the end of a text."""

    def __init__(self, definition: str, config: dict[str, Any] | None = None) -> None:
        self._definition = definition
        self.config = config or {}
        self._library = _load(definition)
        added = self._library.get_added_tokens_decoder()
        self.control = {
            token.content: ident
            for ident, token in added.items()
            if token.special or MARK.fullmatch(token.content)
        }
        self._added = {ident: token.content for ident, token in added.items()}
        self._special_ids = {ident for ident, token in added.items() if token.special}
        self._control_pattern = _any_of(self.control)
        self.end_ids = frozenset(self._named_ids("eos_token"))

    @classmethod
    def open(cls, source: Source) -> Self | None:
        """The tokenizer among the model's files; None when there is none."""
        config = read_json(source, "tokenizer_config.json") or {}
        data = read_whole(source, "tokenizer.json", LARGEST_TOKENIZER_BYTES)
        if data is None:
            ranks = read_whole(source, tiktoken.FILE, LARGEST_TOKENIZER_BYTES)
            if ranks is None:
                return None
            refuse_pointer(tiktoken.FILE, ranks)
            return cls(tiktoken.definition(ranks, config), config)
        refuse_pointer("tokenizer.json", data)
        try:
            definition = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"tokenizer.json is not text ({error}); download it again") from None
        return cls(definition, config)

    @property
    def definition(self) -> str:
        """The tokenizer as the library reads it, in JSON."""
        return self._definition

    @property
    def size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self._library.get_vocab_size(with_added_tokens=True))

    def id_of(self, token: str) -> int | None:
        """The id of a token spelled out in full."""
        found = self._library.token_to_id(token) if _is_text(token) else None
        return None if found is None else int(found)

    def text_of(self, ident: int) -> str:
        """One token as text; bytes that are no character by themselves become replacement characters."""
        return self.decode([ident], keep_special=True)

    def bytes_of(self, ident: int) -> bytes:
        """What one token adds to a text: UTF-8, of which it may hold part of a character."""
        piece = self._library.id_to_token(ident)
        if piece is None or ident in self._added:
            return (piece or "").encode()
        if self._spells_bytes:
            return bytes(BYTES[character] for character in piece if character in BYTES)
        single = BYTE.fullmatch(piece)
        return bytes.fromhex(single[1]) if single else piece.replace(SPACE, " ").encode()

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of plain text: nothing in it becomes a control token.

        `add_special` adds what the tokenizer puts around a text by itself (a start token, usually).
        """
        _refuse_halves(text)
        secrets = self._secrets_for(text)
        return self._encode_twin(text, secrets, add_special=add_special)

    def encode_rendered(self, rendered: str, broken: dict[str, str] | None = None) -> list[int]:
        """Ids of a rendered template, whose control tokens count, except those a user typed.

        `broken` maps stand-in characters to what they stand for: whoever rendered the text put one in place
        of the first character of each control token that a user typed (see `engine.template`).
        """
        _refuse_halves(rendered)
        broken = {stand_in: text for stand_in, text in (broken or {}).items() if stand_in in rendered}
        if not broken:
            return list(self._library.encode(rendered, add_special_tokens=False).ids)
        secrets = self._secrets_for(rendered)
        respelled = rendered
        if self._control_pattern is not None:
            respelled = self._control_pattern.sub(lambda found: secrets[found.group()], rendered)
        for stand_in, text in broken.items():
            respelled = respelled.replace(stand_in, text)
        return self._encode_twin(respelled, secrets, add_special=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a text whose writer spelled out its control tokens, which count. What the tokenizer puts around a text
        is added, but for a start token that is there already."""
        _refuse_halves(text)
        bare = list(self._library.encode(text, add_special_tokens=False).ids)
        ids = list(self._library.encode(text, add_special_tokens=True).ids)
        doubled = len(ids) > len(bare) and ids[:1] == bare[:1] and ids[1 : len(bare) + 1] == bare
        return ids[1:] if doubled else ids

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Text of tokens; special tokens leave none unless `keep_special`."""
        return str(self._library.decode(list(ids), skip_special_tokens=not keep_special))

    def stream(self) -> "TextStream":
        """A decoder for tokens that come one at a time."""
        return TextStream(self)

    def is_special(self, ident: int) -> bool:
        """Whether a token leaves no text."""
        return ident in self._special_ids

    @cached_property
    def _spells_bytes(self) -> bool:
        """Whether the characters of the vocabulary stand for bytes."""
        decoder = self._library.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def _named_ids(self, key: str) -> list[int]:
        value = self.config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        ident = self.id_of(text) if isinstance(text, str) else None
        return [] if ident is None else [ident]

    def _secrets_for(self, text: str) -> dict[str, str]:
        """The twin's spelling of each control token, with a lead character that `text` does not contain."""
        lead = next((chr(code) for code in SECRETS if chr(code) not in text), None)
        if lead is None:
            raise TokenizerError("the text uses every private-use character; remove some")
        return {content: f"{lead}{ident}{lead}" for content, ident in self.control.items()}

    def _encode_twin(self, text: str, secrets: dict[str, str], *, add_special: bool) -> list[int]:
        lead = next(iter(secrets.values()))[0] if secrets else ""
        twin, back = self._twin(lead)
        ids = twin.encode(text, add_special_tokens=add_special).ids
        return [back.get(ident, ident) for ident in ids]

    def _twin(self, lead: str) -> tuple[LibraryTokenizer, dict[int, int]]:
        if lead == chr(SECRETS[0]):
            return self._usual_twin
        return self._make_twin(lead)

    @cached_property
    def _usual_twin(self) -> tuple[LibraryTokenizer, dict[int, int]]:
        return self._make_twin(chr(SECRETS[0]))

    def _make_twin(self, lead: str) -> tuple[LibraryTokenizer, dict[int, int]]:
        """The tokenizer with its control tokens respelled, and the map from its ids to the model's."""
        definition = json.loads(self._definition)
        names = {content: f"{lead}{ident}{lead}" for content, ident in self.control.items()}
        for token in definition.get("added_tokens") or ():
            token["content"] = names.get(token["content"], token["content"])
        vocabulary = definition["model"].get("vocab")
        if isinstance(vocabulary, dict):
            definition["model"]["vocab"] = {
                names.get(token, token): ident for token, ident in vocabulary.items()
            }
        elif isinstance(vocabulary, list):
            definition["model"]["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
        twin = _load(json.dumps(definition, ensure_ascii=False))
        back = {
            int(twin_id): self.control[content]
            for content, name in names.items()
            if (twin_id := twin.token_to_id(name)) is not None
        }
        return twin, back


class TextStream:
    """Tokens in, text out as soon as its characters are complete.

    A character may be spread over several tokens. Text is held back while it ends in an incomplete
    character, so that neither a half character nor a replacement for one is ever shown; what is still
    incomplete at the end is dropped.
    """

    LONGEST_CHARACTER = 4  # tokens: a UTF-8 character has at most four bytes
    CONTEXT = 6  # tokens decoded again before the new ones, because spacing depends on neighbours

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # context, then what is new
        self._shown = ""  # the text of `_ids` that was given out

    def push(self, ident: int) -> str:
        """The text that one more token completes; often empty."""
        if self._tokenizer.is_special(ident):
            return ""
        self._ids.append(ident)
        text = self._tokenizer.decode(self._ids)
        complete = text.rstrip(REPLACEMENT)
        if len(text) - len(complete) > self.LONGEST_CHARACTER:
            complete = text[: -self.LONGEST_CHARACTER]  # bytes that never will be a character
        if not complete.startswith(self._shown):
            return ""  # the last character was not what it seemed; wait for the next token
        new = complete[len(self._shown) :]
        self._shown = complete
        if complete == text and len(self._ids) > 4 * self.CONTEXT:
            self._ids = self._ids[-self.CONTEXT :]
            self._shown = self._tokenizer.decode(self._ids)
        return new


def _load(definition: str) -> LibraryTokenizer:
    try:
        return LibraryTokenizer.from_str(definition)
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise TokenizerError(f"tokenizer.json cannot be used ({error}); download it again") from None


def _is_text(text: str) -> bool:
    """Whether all of it are characters; JSON can spell halves of surrogate pairs, which are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_halves(text: str) -> None:
    if not _is_text(text):
        raise TokenizerError("the text holds half a surrogate pair, which is no character; remove it")


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of the words, longer ones first; None for no words."""
    ordered: Sequence[str] = sorted((word for word in words if word), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
