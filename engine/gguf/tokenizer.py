"""The tokenizer and chat template in a GGUF file's metadata, as tokenizer.json and tokenizer_config.json.

The kind "gpt2" is byte-level BPE; "llama" is SentencePiece's BPE, whose merges follow from the scores. How text is cut
into words before that is named by `tokenizer.ggml.pre`, and nowhere spelled out; `PATTERNS` has the models' own
patterns under these names. A name that is not there is refused: tokens would be wrong, silently.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from engine.config import Reader
from engine.errors import TokenizerError
from engine.tiktoken import LONGEST_MERGED
from engine.tiktoken import WORDS as KIMI

REMEDY = "put the model's tokenizer.json beside the file and give the directory"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
QWEN35 = (  # marks count as letters
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
DEEPSEEK = (  # one after the other
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
GPT2 = ()  # the pattern that the library's byte-level step has by itself
PATTERNS: Mapping[str, Sequence[str]] = {
    "chatglm-bpe": (LLAMA3,),
    "deepseek-v3": DEEPSEEK,
    "glm4": (LLAMA3,),
    "gpt-2": GPT2,
    "gpt-4o": (O200K,),
    "hunyuan-dense": DEEPSEEK,
    "kimi-k2": (KIMI,),
    "llama-bpe": (LLAMA3,),
    "minimax-m2": (O200K,),
    "olmo": GPT2,
    "qwen2": (QWEN,),
    "qwen35": (QWEN35,),
}
COMPOSED = ("qwen2", "qwen35", "olmo")  # their tokenizers compose characters first (NFC)
IGNORES_MERGES = (
    "gpt-4o",
    "kimi-k2",
    "llama-bpe",
)  # a word that is a token as a whole is not built by merges


def tokenizer_files(path: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The content of tokenizer.json (as text) and tokenizer_config.json; empty if the file has no tokenizer."""
    read = Reader(metadata, path)
    kind = read.text("tokenizer.ggml.model", default="none")
    if kind in ("none", "no_vocab"):
        return {}
    if kind not in ("gpt2", "llama"):
        raise TokenizerError(
            f"{path} has a tokenizer of the kind {kind[:80]!r}; gpt2 and llama are known: {REMEDY}"
        )
    tokens = _texts(path, metadata, "tokenizer.ggml.tokens")
    kinds = read.counts("tokenizer.ggml.token_type", default=[NORMAL] * len(tokens))
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{path} does not give every token once and a type: {REMEDY}")
    library = _gpt2(path, metadata, tokens) if kind == "gpt2" else _llama(path, metadata, tokens, kinds)
    library.add_tokens(
        [
            AddedToken(token, special=kinds[ident] in (CONTROL, UNKNOWN), normalized=False)
            for ident, token in enumerate(tokens)
            if kinds[ident] in (CONTROL, UNKNOWN, USER_DEFINED) and token
        ]
    )
    special = {part: _special(metadata, tokens, part) for part in ("bos", "eos", "unknown", "padding")}
    default = kind == "llama"
    if read.flag("tokenizer.ggml.add_bos_token", default=default) and special["bos"] is not None:
        start = special["bos"]
        library.post_processor = processors.TemplateProcessing(
            single=f"{start}:0 $A:0",
            pair=f"{start}:0 $A:0 $B:1",
            special_tokens=[(start, tokens.index(start))],
        )
    config = {
        "bos_token": special["bos"],
        "eos_token": special["eos"],
        "unk_token": special["unknown"],
        "pad_token": special["padding"],
        "chat_template": _templates(metadata) or None,
    }
    return {"tokenizer.json": str(library.to_str()), "tokenizer_config.json": config}


def stop_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """The ids of the tokens that end a text, a turn or a message."""
    values = [token_id(metadata, part) for part in ("eos", "eot", "eom")]
    return sorted({value for value in values if value is not None})


def token_id(metadata: Mapping[str, Any], part: str) -> int | None:
    """The id of the token that is a text's start ("bos"), end ("eos") …; None when no number says it."""
    value = metadata.get(f"tokenizer.ggml.{part}_token_id")
    return value if type(value) is int else None


def _gpt2(path: str, metadata: Mapping[str, Any], tokens: Sequence[str]) -> LibraryTokenizer:
    words = Reader(metadata, path).text("tokenizer.ggml.pre", default="unnamed")
    if words not in PATTERNS:
        raise TokenizerError(
            f"{path} cuts text into words in the way {words[:80]!r}, which is not known "
            f"(known are {', '.join(PATTERNS)}): {REMEDY}"
        )
    merges = []
    for line in _texts(path, metadata, "tokenizer.ggml.merges"):
        left, space, right = line.partition(" ")
        if not (space and left and right):
            raise TokenizerError(f"{path}: {line[:40]!r} is no merge of two tokens: {REMEDY}")
        merges.append((left, right))
    vocabulary = {token: ident for ident, token in enumerate(tokens)}
    library = _bpe(path, vocabulary, merges, ignore_merges=words in IGNORES_MERGES)
    patterns = PATTERNS[words]
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level]) if splits else byte_level
    if words in COMPOSED:
        library.normalizer = normalizers.NFC()
    library.decoder = decoders.ByteLevel()
    return library


def _llama(
    path: str, metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]
) -> LibraryTokenizer:
    read = Reader(metadata, path)
    scores = read.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise TokenizerError(f"{path} does not give a score for each token: {REMEDY}")
    vocabulary = {token: ident for ident, token in enumerate(tokens)}
    found = []
    for ident, token in enumerate(tokens):
        if len(token) > LONGEST_MERGED:
            raise TokenizerError(f"{path} has a token of {len(token):,} characters, which is not believable")
        if kinds[ident] == NORMAL:
            pairs = ((token[:place], token[place:]) for place in range(1, len(token)))
            known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
            found += [
                (-scores[ident], vocabulary[left], vocabulary[right], left, right) for left, right in known
            ]
    unknown = _special(metadata, tokens, "unknown")
    library = _bpe(
        path,
        vocabulary,
        [(left, right) for *_, left, right in sorted(found)],
        byte_fallback=True,
        fuse_unk=True,
        unk_token=unknown,
    )
    prefix = read.flag("tokenizer.ggml.add_space_prefix", default=True)
    steps = [normalizers.Prepend("▁")] if prefix else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return library


def _bpe(
    path: str, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> LibraryTokenizer:
    try:
        return LibraryTokenizer(models.BPE(vocabulary, merges, **options))
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise TokenizerError(f"{path} has a tokenizer that cannot be used ({error}): {REMEDY}") from None


def _texts(path: str, metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TokenizerError(f"{path} gives no list {key}: {REMEDY}")
    return value


def _special(metadata: Mapping[str, Any], tokens: Sequence[str], part: str) -> str | None:
    """The token that is a text's start, end …; None when there is none."""
    ident = token_id(metadata, part)
    return tokens[ident] if ident is not None and 0 <= ident < len(tokens) else None


def _templates(metadata: Mapping[str, Any]) -> list[dict[str, str]]:
    """The chat templates by name, the unnamed one as "default"."""
    prefix = "tokenizer.chat_template"
    return [
        {"name": key[len(prefix) + 1 :] or "default", "template": text}
        for key, text in metadata.items()
        if (key == prefix or key.startswith(f"{prefix}.")) and isinstance(text, str)
    ]
