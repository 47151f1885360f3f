"""Tokenizers given as ranked byte strings: the tokens of plain byte-pair merging, special tokens and their ids."""

import base64
import json
from pathlib import Path

import pytest

from engine import tiktoken
from engine.errors import TokenizerError
from engine.source import DirectorySource
from engine.tokenizer import Tokenizer

PIECES = [
    "he",
    "ll",
    "hell",
    "hello",
    " w",
    "or",
    " wor",
    "ld",
    "lo",
    "12",
    "123",
    "th",
    "the",
    "The",
    "你",
    "好",
    "你好",
    "n't",
]
SPECIAL = {274: "<|im_end|>", 275: "[BOS]", 280: "<think>"}


def ranks() -> dict[bytes, int]:
    tokens = [bytes([byte]) for byte in range(256)]
    for piece in PIECES:
        data = piece.encode()
        tokens += [
            data[:end]
            for end in range(2, len(data) + 1)
            if len(data) > len(piece) and data[:end] not in tokens
        ]
        if data not in tokens:
            tokens.append(data)
    return {token: rank for rank, token in enumerate(tokens)}


def model_file() -> bytes:
    return b"\n".join(base64.b64encode(token) + b" %d" % rank for token, rank in ranks().items())


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "tiktoken.model").write_bytes(model_file())
    first = len(ranks())
    decoder = {
        str(first + ident - 274): {"content": content, "special": content != "<think>"}
        for ident, content in SPECIAL.items()
    }
    config = {"added_tokens_decoder": decoder, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    opened = Tokenizer.open(DirectorySource(tmp_path))
    assert opened is not None
    return opened


def merged(word: bytes) -> list[int]:
    """Plain byte-pair merging: again and again the two neighbours whose join has the lowest rank."""
    table = ranks()
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 1:
        joins = [(table.get(parts[i] + parts[i + 1], 1 << 30), i) for i in range(len(parts) - 1)]
        best, place = min(joins)
        if best == 1 << 30:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [table[part] for part in parts]


@pytest.mark.parametrize(
    "words",
    [
        ["hello", " world"],
        ["The", "the", " the"],
        ["123", "412"],
        ["你好", "hello", "好"],
        ["don't", " x", "...\n"],
        ["hell", " \n", " ", " w"],
        ["Ünï", "🚀"],
    ],
)
def test_words_are_merged_by_rank(tokenizer: Tokenizer, words: list[str]) -> None:
    text = "".join(words)
    expected = [ident for word in words for ident in merged(word.encode())]
    if words[0] in ("The", "don't"):
        assert tokenizer.decode(tokenizer.encode(text)) == text  # words run together there
    else:
        assert tokenizer.encode(text) == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_follow_the_ranks(tokenizer: Tokenizer) -> None:
    first = len(ranks())
    assert tokenizer.id_of("<|im_end|>") == first
    assert tokenizer.id_of("[BOS]") == first + 1
    assert tokenizer.id_of("<think>") == first + 6
    assert tokenizer.end_ids == {first}
    assert tokenizer.size == first + 256
    assert tokenizer.encode_rendered("[BOS]hello<|im_end|>")[0] == first + 1
    assert first not in tokenizer.encode("<|im_end|>")


@pytest.mark.parametrize(
    "damage", [b"!!!! 0", b"YQ== x", b"YQ==", b"YQ== 0", model_file().replace(b" 7", b" 8", 1)]
)
def test_a_damaged_file_is_named(damage: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tiktoken\.model"):
        tiktoken.definition(damage, {})
