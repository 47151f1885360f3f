"""Tokenizers shipped as `tiktoken.model`: byte strings and ranks, turned into what the `tokenizers` library reads.

Kimi's releases come so. The file has a line a token, base64 and rank; merging two pieces is allowed wherever their join
is a token, lowest rank first. Special tokens follow the ranks; tokenizer_config.json names those that have a meaning.
The pattern that cuts text into words is in no data file; it is that of Kimi's own tokenizer.
"""

import base64
import binascii
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from engine.errors import TokenizerError

FILE = "tiktoken.model"
LONGEST_MERGED = 1024  # characters or bytes of a token, all of whose cuts in two are looked at
RESERVED = 256  # ids after the ranks that special tokens may have
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = (rf"[\p{{{first}}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for first in (r"Lu}\p{Lt", "Ll"))
LEAD = r"[^\r\n\p{L}\p{N}]?"
WORDS = "|".join(
    (
        r"[\p{Han}]+",
        f"{LEAD}{UPPER}*{LOWER}+{SUFFIX}",
        f"{LEAD}{UPPER}+{LOWER}*{SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def definition(data: bytes, config: dict[str, Any]) -> str:
    """The definition of the tokenizer, as in a tokenizer.json. TokenizerError when the file is damaged."""
    ranks = _ranks(data)
    spell = byte_characters()
    vocabulary = {"".join(spell[byte] for byte in token): rank for token, rank in ranks.items()}
    merges = [
        ("".join(spell[byte] for byte in left), "".join(spell[byte] for byte in right))
        for token in sorted(ranks, key=ranks.__getitem__)
        for left, right in _splits(token, ranks)
    ]
    library = LibraryTokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    words = pre_tokenizers.Split(Regex(WORDS), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    library.decoder = decoders.ByteLevel()
    library.add_tokens(_special(len(ranks), config))
    return str(library.to_str())


def _ranks(data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines()):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(
                f"{FILE}, line {number + 1}: not a token and its rank; download it again"
            ) from None
    if any(len(token) > LONGEST_MERGED for token in ranks):
        raise TokenizerError(
            f"{FILE} has a token of more than {LONGEST_MERGED:,} bytes, which is not believable"
        )
    if sorted(ranks.values()) != list(range(len(ranks))) or any(
        bytes([byte]) not in ranks for byte in range(256)
    ):
        raise TokenizerError(
            f"{FILE} does not give every byte a token and every rank once; download it again"
        )
    return ranks


def _splits(token: bytes, ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """All ways to join two tokens into this one."""
    pairs = [(token[:place], token[place:]) for place in range(1, len(token))]
    known = [(left, right) for left, right in pairs if left in ranks and right in ranks]
    return sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _special(first: int, config: dict[str, Any]) -> list[AddedToken]:
    """The special tokens in the order of their ids, those without a name under a reserved one."""
    named = config.get("added_tokens_decoder")
    entries = named if isinstance(named, dict) else {}
    tokens = []
    for ident in range(first, first + RESERVED):
        entry = entries.get(str(ident))
        content = entry.get("content") if isinstance(entry, dict) else None
        special = not isinstance(entry, dict) or bool(entry.get("special", True))
        name = content if isinstance(content, str) and content else f"<|reserved_token_{ident}|>"
        tokens.append(AddedToken(name, special=special, normalized=False))
    return tokens


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies: itself where it is visible."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]
