"""A directory with a GGUF file (or its parts) seen as one with a Hugging Face checkpoint.

The bytes stay where they are. What a GGUF file keeps in its metadata appears as files: config.json,
generation_config.json, and, unless such files lie beside it, tokenizer.json and tokenizer_config.json.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from engine.errors import CheckpointError
from engine.gguf.architectures import Tensors, config_of
from engine.gguf.header import Header, MoreNeeded, Tensor, parse_header
from engine.gguf.tokenizer import stop_tokens, token_id, tokenizer_files
from engine.safetensors import TensorInfo
from engine.source import Source

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MOST_PARTS = 999
FIRST_BYTES = 1 << 16
# What llama.cpp's files with image and sound encoders, and with multi-token prediction alone, begin with:
NOT_TEXT = ("mmproj", "mtp-")


def presented(source: Source) -> Source:
    """The source as one with config.json and tokenizer.json: itself, unless its weights are a GGUF file.

    Raises EngineError if they are one that cannot be used.
    """
    files = source.files()
    names = [path for path in files if path.endswith(".gguf") and "/" not in path]
    if isinstance(source, GGUFSource) or not names:
        return source
    if any(path.endswith(".safetensors") and "/" not in path for path in files):
        return source
    return GGUFSource(source, _parts([path for path in names if not path.startswith(NOT_TEXT)] or names))


class GGUFSource:
    """A `Source` of a GGUF file's bytes and of the files that its metadata stands for."""

    def __init__(self, source: Source, parts: list[str]) -> None:
        self._source = source
        self._path = parts[0]
        source.prefetch([(path, 0, min(FIRST_BYTES, source.files()[path])) for path in parts])
        headers = {path: _header(source, path) for path in parts}
        self._metadata = headers[self._path].metadata
        _check_parts(headers)
        tensors: dict[str, Tensor] = {}
        for path, header in headers.items():
            for tensor in header.tensors:
                if tensor.name in tensors:
                    raise CheckpointError(f"tensor {tensor.name!r} is in {path} and in another part")
                tensors[tensor.name] = tensor
        self.config: Mapping[str, Any] = {
            **config_of(self._path, self._metadata, tensors),
            "torch_dtype": _most(tensors).lower(),
            "bos_token_id": token_id(self._metadata, "bos"),
            "eos_token_id": stop_tokens(self._metadata) or None,
        }
        names = Tensors(self._path, self._metadata, self.config)
        self.tensors: Mapping[str, TensorInfo] = {
            info.name: info
            for path, header in headers.items()
            for tensor in header.tensors
            for info in names.named(path, tensor)
        }

    def files(self) -> Mapping[str, int]:
        return {**self._source.files(), **{path: len(data) for path, data in self._virtual.items()}}

    def read(self, path: str, offset: int, length: int) -> bytes | bytearray | memoryview:
        data = self._virtual.get(path) if path.endswith(".json") else None
        if data is None:
            return self._source.read(path, offset, length)
        if offset < 0 or offset + length > len(data):
            raise OSError(f"{path} has {len(data)} bytes; {offset} to {offset + length} were asked for")
        return data[offset : offset + length]

    def prefetch(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        self._source.prefetch([found for found in ranges if not found[0].endswith(".json")])

    def fingerprint(self) -> str | None:
        return self._source.fingerprint()

    @cached_property
    def _virtual(self) -> Mapping[str, bytes]:
        there = self._source.files()
        contents: dict[str, Any] = {"config.json": self.config, "generation_config.json": {}}
        if "tokenizer.json" not in there:
            contents |= {
                path: content
                for path, content in tokenizer_files(self._path, self._metadata).items()
                if path not in there
            }
        return {
            path: (content if isinstance(content, str) else json.dumps(content)).encode()
            for path, content in contents.items()
        }


def _header(source: Source, path: str) -> Header:
    size = source.files()[path]
    length = min(FIRST_BYTES, size)
    while True:
        try:
            return parse_header(path, size, bytes(source.read(path, 0, length)))
        except MoreNeeded as more:
            length = min(max(more.length, 4 * length), size)


def _parts(names: list[str]) -> list[str]:
    """The file, or all parts of it in their order."""
    split = {path: found for path in names if (found := PART.fullmatch(path))}
    models = {found["stem"] for found in split.values()} | {path for path in names if path not in split}
    if len(models) != 1:
        raise CheckpointError(
            f"cannot tell which GGUF file is meant: {', '.join(sorted(names)[:5])}; give the file itself"
        )
    if not split:
        return names
    stem, count = next((found["stem"], int(found["count"])) for found in split.values())
    needed = [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, min(count, MOST_PARTS) + 1)]
    missing = [path for path in needed if path not in split]
    if missing or len(split) != len(needed):
        raise CheckpointError(
            f"{', '.join(missing[:3]) or 'a part'} missing ({len(missing)} of {count} parts); "
            "download the model again to complete it"
        )
    return needed


def _check_parts(headers: Mapping[str, Header]) -> None:
    """Parts say how many there are, which one each is, and how many tensors they hold together."""
    total = sum(len(header.tensors) for header in headers.values())
    for number, (path, header) in enumerate(headers.items()):
        said = header.metadata
        if (
            said.get("split.count", 1) not in (0, len(headers))
            or said.get("split.no", number) != number
            or said.get("split.tensors.count", total) != total
        ):
            raise CheckpointError(
                f"{path} says of itself that it is part {_short(said.get('split.no'))} of "
                f"{_short(said.get('split.count'))}, with {_short(said.get('split.tensors.count'))} tensors in all; "
                f"here it is part {number} of {len(headers)} with {total}: give all the parts of one model, under "
                "their own names"
            )


def _short(value: object) -> str:
    return str(value)[:40]


def _most(tensors: Mapping[str, Tensor]) -> str:
    """The kind of tensor with most bytes."""
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        sizes[tensor.kind.name] = sizes.get(tensor.kind.name, 0) + tensor.nbytes
    return max(sizes, key=lambda kind: sizes[kind])
