"""Tokens and text: the reference ids, typed control tokens that stay text, and characters that are never
cut in two."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from engine.errors import TokenizerError
from engine.source import DirectorySource
from engine.template import ChatTemplate
from engine.tokenizer import Tokenizer

FOLDERS = ["olmoe", "qwen3_moe"]


def opened(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.open(DirectorySource(folder))
    assert tokenizer is not None
    return tokenizer


def conversations(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "golden_chat.json").read_text())
    return found


@pytest.fixture
def tokenizer(oracle: Path) -> Tokenizer:
    return opened(oracle / "olmoe")


@pytest.mark.parametrize("name", FOLDERS)
def test_chat_ids_are_those_of_the_reference_but_for_typed_control_tokens(oracle: Path, name: str) -> None:
    tokenizer = opened(oracle / name)
    template = ChatTemplate.open(DirectorySource(oracle / name), tokenizer)
    assert template is not None
    typed = 0
    for conversation in conversations(oracle / name):
        prompt = template.prompt(conversation["messages"])
        assert prompt.text == conversation["text"]
        contents = [message["content"] for message in conversation["messages"]]
        ours, theirs = iter(prompt.ids), conversation["ids"]
        if not any(token in content for token in tokenizer.control for content in contents):
            assert prompt.ids == theirs
            assert tokenizer.decode(prompt.ids) == conversation["decoded"]
            continue
        # Where the reference has a control token that a user typed, ours spells it; all else is equal.
        plain = {ident: tokenizer.encode(token) for token, ident in tokenizer.control.items()}
        ours = prompt.ids
        place = 0
        for ident in theirs:
            spelled = plain.get(ident, [])
            if spelled and ours[place : place + len(spelled)] == spelled:
                typed += 1
                place += len(spelled)
            else:
                assert ours[place] == ident
                place += 1
        assert place == len(ours)
        assert tokenizer.decode(ours).count("<|im_end|>") == contents[0].count("<|im_end|>")
    assert typed == 3


@pytest.mark.parametrize("name", FOLDERS)
def test_streamed_text_is_the_text(oracle: Path, name: str) -> None:
    tokenizer = opened(oracle / name)
    for conversation in conversations(oracle / name):
        stream = tokenizer.stream()
        pieces = [stream.push(ident) for ident in conversation["ids"]]
        assert "".join(pieces) == conversation["decoded"]
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_appears_whole_or_not_at_all(tokenizer: Tokenizer) -> None:
    text = "é你🚀👩\u200d🚀"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    for cut in range(len(ids) + 1):
        stream = tokenizer.stream()
        shown = "".join(stream.push(ident) for ident in ids[:cut])
        assert text.startswith(shown)
        assert "\ufffd" not in shown
    assert shown == text


def test_bytes_that_never_become_a_character_do_not_block_the_stream(tokenizer: Tokenizer) -> None:
    lone = tokenizer.encode("🚀")[1:2]  # a continuation byte
    stream = tokenizer.stream()
    shown = "".join(stream.push(ident) for ident in lone * 9 + tokenizer.encode(" hello"))
    assert shown.endswith(" hello")
    assert shown.count("\ufffd") == 9


def test_long_streams_keep_a_short_window(tokenizer: Tokenizer) -> None:
    text = "The sea, the sea! 你好 🚀 " * 40
    stream = tokenizer.stream()
    assert "".join(stream.push(ident) for ident in tokenizer.encode(text)) == text
    assert len(stream._ids) < 64


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "a<|im_start|>system\n", "<|endoftext|><|endoftext|>", "<|im_end|"]
)
def test_plain_text_never_becomes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.control.values())
    assert tokenizer.decode(ids) == text


def test_plain_text_may_hold_the_secret_characters(tokenizer: Tokenizer) -> None:
    text = "\U0010f000" + "1" + "\U0010f000 <|im_end|>"
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.control.values())
    assert tokenizer.decode(ids) == text


def test_end_tokens_come_from_the_configuration(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_ids == {tokenizer.id_of("<|im_end|>")}
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.text_of(2) == "<|im_end|>"
    assert tokenizer.size == 512


def metaspace_tokenizer() -> Tokenizer:
    """SentencePiece's way of writing: spaces as '▁', one before the first word, control tokens within the
    vocabulary."""
    vocabulary = {token: ident for ident, token in enumerate(["<s>", "</s>", "<unk>", "▁", *"abchi</>s"])}
    library = LibraryTokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first")
    library.decoder = decoders.Metaspace("▁", prepend_scheme="first")
    library.add_special_tokens(["<s>", "</s>", "[MARK]"])
    library.add_tokens([AddedToken("<think>", special=False), AddedToken("hi", special=False)])
    return Tokenizer(library.to_str(), {"eos_token": {"content": "</s>"}})


def test_marks_count_as_control_tokens_though_not_called_special() -> None:
    tokenizer = metaspace_tokenizer()
    assert set(tokenizer.control) == {"<s>", "</s>", "[MARK]", "<think>"}
    assert not set(tokenizer.encode("<think>[MARK]</s>")) & set(tokenizer.control.values())
    assert tokenizer.id_of("hi") in tokenizer.encode("hi")  # an ordinary added word stays one


def test_text_after_a_mark_is_read_as_without_typed_marks() -> None:
    tokenizer = metaspace_tokenizer()
    names = ["<s>", "a", "b", "<", "/", "s", ">", "</s>", "c"]
    broken = tokenizer.encode_rendered("<s>ab\uf000/s></s>c", {"\uf000": "<"})
    assert broken == [tokenizer.id_of(name) for name in names]
    assert tokenizer.encode("</s>")[0] == tokenizer.id_of("▁")


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    assert Tokenizer.open(DirectorySource(tmp_path)) is None
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be used"):
        Tokenizer.open(DirectorySource(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TokenizerError, match="not text"):
        Tokenizer.open(DirectorySource(tmp_path))


@pytest.mark.parametrize("name", FOLDERS)
def test_the_bytes_of_tokens_are_those_of_the_text(oracle: Path, name: str) -> None:
    tokenizer = opened(oracle / name)
    text = "Grüße, 你好 🎉\ufffd\n\tpause\x00 <x>"
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.bytes_of, ids)) == text.encode()
    assert any(tokenizer.bytes_of(ident)[:1] in b"\x9f\x8e\xf0" for ident in ids)
    for mark, ident in tokenizer.control.items():
        assert tokenizer.bytes_of(ident) == mark.encode()
    assert tokenizer.bytes_of(1 << 30) == b""


def test_the_bytes_of_tokens_where_the_vocabulary_is_text() -> None:
    tokenizer = metaspace_tokenizer()
    assert b"".join(map(tokenizer.bytes_of, tokenizer.encode(" ab"))) == b" ab"
    library = LibraryTokenizer(models.BPE({"<0xF0>": 0, "<0x9F>": 1, "a": 2}, [], byte_fallback=True))
    library.decoder = decoders.ByteFallback()
    assert list(map(Tokenizer(library.to_str()).bytes_of, range(3))) == [b"\xf0", b"\x9f", b"a"]


def test_control_tokens_count_in_a_prompt_that_spells_them() -> None:
    tokenizer = metaspace_tokenizer()
    library = LibraryTokenizer.from_str(tokenizer.definition)
    start, end = (tokenizer.id_of(mark) for mark in ("<s>", "</s>"))
    library.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", start), ("</s>", end)]
    )
    around = Tokenizer(library.to_str())
    inner = tokenizer.encode_rendered("a<think>b")
    assert around.encode_prompt("a<think>b") == [start, *inner, end]
    assert tokenizer.id_of("<think>") in inner
    assert around.encode_prompt("<s>a") == [start, *tokenizer.encode_rendered("<s>a")[1:], end]
    assert tokenizer.encode_prompt("<s><s>a")[:2] == [start, start]
