"""A model's files as a mapping of tensors, read range by range from a `Source`.

Which files count: those of `model.safetensors.index.json`; else `model.safetensors`; else the shards
`model-00001-of-0000N.safetensors`; else a single other safetensors file. Nothing else in the folder is
touched. A missing shard is named from the index, or from the shards' own numbering; a tensor found nowhere
names the files seen. Where there is a GGUF file and no safetensors, it counts (`engine.gguf`).

The bytes are given as stored: bfloat16 as uint16, 8-bit floats and blocks as uint8. What they mean is up to
`engine.formats`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from engine.arrays import F32, Array
from engine.errors import CheckpointError, ConfigError
from engine.gguf import GGUFSource, presented
from engine.safetensors import TensorInfo, header_length, parse_header, refuse_pointer
from engine.source import Source, read_whole

__all__ = ["Checkpoint", "TensorInfo", "read_json"]

LARGEST_JSON_BYTES = 256 << 20
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
NOT_WEIGHTS = ("golden.safetensors", "consolidated")

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8,
        "F8_E8M0": np.uint8, "I16": np.int16, "U16": np.uint16, "F16": np.float16, "BF16": np.uint16,
        "I32": np.int32, "U32": np.uint32, "F32": np.float32,
        "I64": np.int64, "U64": np.uint64, "F64": np.float64,
        "Q8_0": np.uint8, "Q4_0": np.uint8, "MXFP4": np.uint8,
    }.items()
}  # fmt: skip


class Checkpoint:
    """The configuration and tensors of one model.

    `config` is config.json as it stands; `tensors` maps each name to where its bytes lie. Reading is
    thread-safe.
    """

    def __init__(self, source: Source, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
        self.source = source
        self.config = config
        self.tensors = tensors

    @classmethod
    def open(cls, source: Source) -> Self:
        """Reads config.json and the headers of the weights, and checks them. Raises CheckpointError."""
        source = presented(source)
        if isinstance(source, GGUFSource):
            return cls(source, source.config, source.tensors)
        config = read_json(source, "config.json")
        if config is None:
            raise CheckpointError("there is no config.json; this is not a Hugging Face model directory")
        return cls(source, config, _read_tensors(source))

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        """Where a tensor lies; CheckpointError naming the files searched when there is none."""
        found = self.tensors.get(name)
        if found is None:
            files = sorted({tensor.file for tensor in self.tensors.values()})
            seen = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
            raise CheckpointError(
                f"tensor {name!r} is in none of the model's files ({seen}); "
                "a shard may be missing, or config.json belongs to another model"
            )
        return found

    def raw(self, name: str, first: int = 0, count: int | None = None) -> Array:
        """A tensor as stored; with `first` and `count` only that part of its leading dimension is read."""
        info = self.info(name)
        if info.interleaved_heads:
            return self._raw_heads(info, first, count)
        path, offset, nbytes, shape = _part(info, first, count)
        return np.frombuffer(self.source.read(path, offset, nbytes), self.dtype(name)).reshape(shape)

    def _raw_heads(self, info: TensorInfo, first: int, count: int | None) -> Array:
        """Rows [first, first + count) once the halves of each head follow one another; whole heads are read."""
        dim = info.shape[0] // info.interleaved_heads
        count = info.shape[0] - first if count is None else count
        begin = first // dim
        heads = max(begin, -(-(first + count) // dim)) - begin
        path, offset, nbytes, shape = _part(info, begin * dim, heads * dim)
        data = np.frombuffer(self.source.read(path, offset, nbytes), self.dtype(info.name))
        turned = data.reshape(heads, dim // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        return turned[first - begin * dim :][:count]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The numpy dtype in which `raw` gives a tensor."""
        stored = self.info(name).dtype
        found = NUMPY_DTYPES.get(stored)
        if found is None:
            raise CheckpointError(
                f"tensor {name!r} is stored as {stored}, which cannot be read element by element"
            )
        return found

    def f32(self, name: str, first: int = 0, count: int | None = None) -> F32:
        """A tensor stored as a plain float (F32, F16, BF16, F64) in float32."""
        dtype = self.info(name).dtype
        data = self.raw(name, first, count)
        if dtype == "BF16":
            return (data.astype(np.uint32) << 16).view(np.float32)
        if dtype in ("F32", "F16", "F64"):
            return data.astype(np.float32)
        raise CheckpointError(f"tensor {name!r} is stored as {dtype}; a plain float was expected there")

    def integers(self, name: str) -> Array:
        """A tensor stored as any integer type, as int64 (releases differ between I32 and I64)."""
        data = self.raw(name)
        if data.dtype.kind not in "iu":
            raise CheckpointError(
                f"tensor {name!r} is stored as {self.info(name).dtype}; integers were expected there"
            )
        return data.astype(np.int64)

    def range(self, name: str, first: int = 0, count: int | None = None) -> tuple[str, int, int]:
        """(path, offset, length) of a tensor or of part of its leading dimension."""
        return _part(self.info(name), first, count)[:3]

    def prefetch(self, names: Iterable[str]) -> int:
        """Hints that these tensors will be read, neighbours joined into one range; returns their bytes."""
        ranges = merged([self.range(name) for name in names])
        self.source.prefetch(ranges)
        return sum(length for _, _, length in ranges)


def merged(ranges: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Ranges sorted by file and offset, those that touch or overlap joined."""
    joined: list[tuple[str, int, int]] = []
    for path, offset, length in sorted(ranges):
        if joined and joined[-1][0] == path and offset <= joined[-1][1] + joined[-1][2]:
            start = joined[-1][1]
            joined[-1] = (path, start, max(joined[-1][2], offset + length - start))
        else:
            joined.append((path, offset, length))
    return joined


def config_in(source: Source, directory: object) -> Mapping[str, Any]:
    """The config.json of a model in a directory, also where a GGUF file stands for it. CheckpointError."""
    config = read_json(presented(source), "config.json")
    if config is None:
        raise CheckpointError(f"{directory} holds no config.json; give the folder of a checkpoint")
    return config


def read_json(source: Source, path: str) -> dict[str, Any] | None:
    """A JSON object among the model's files; None when there is no such file."""
    data = read_whole(source, path, LARGEST_JSON_BYTES)
    if data is None:
        return None
    refuse_pointer(path, data)
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return value


def _part(info: TensorInfo, first: int, count: int | None) -> tuple[str, int, int, tuple[int, ...]]:
    if first == 0 and count is None:
        return info.file, info.offset, info.nbytes, info.shape
    sides = info.shape[0] if info.shape else 0
    count = sides - first if count is None else count
    if first < 0 or count < 0 or first + count > sides:
        raise CheckpointError(
            f"tensor {info.name!r} has {sides} entries; {first} to {first + count} were asked for"
        )
    stride = info.nbytes // sides
    return info.file, info.offset + first * stride, count * stride, (count, *info.shape[1:])


def _read_tensors(source: Source) -> dict[str, TensorInfo]:
    weight_map = _index(source)
    files = sorted(set(weight_map.values())) if weight_map else _unindexed(source)
    source.prefetch([(path, 0, 8) for path in files])
    tensors: dict[str, TensorInfo] = {}
    for path in files:
        for name, info in _read_header(source, path).items():
            if weight_map and weight_map.get(name) != path:
                continue  # the index decides; it may leave out duplicates and what no one needs
            if name in tensors:
                raise CheckpointError(f"tensor {name!r} is both in {tensors[name].file} and in {path}")
            tensors[name] = info
    lost = [name for name in weight_map or () if name not in tensors]
    if lost:
        raise CheckpointError(
            f"{INDEX} names {lost[0]!r} and {len(lost) - 1} others that are not in the files it gives "
            "for them; it belongs to other files, download the model again"
        )
    return tensors


def _read_header(source: Source, path: str) -> dict[str, TensorInfo]:
    size = source.files()[path]
    start = bytes(source.read(path, 0, min(size, 64)))
    length = header_length(path, size, start)
    return parse_header(path, size, bytes(source.read(path, 8, length)))


def _index(source: Source) -> dict[str, str] | None:
    index = read_json(source, INDEX)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map; download it again")
    for name, path in weight_map.items():
        if not isinstance(path, str) or not _inside(path):
            raise CheckpointError(
                f"{INDEX} sends tensor {name[:200]!r} to {path!r}, which is no file of the model"
            )
    needed = sorted(set(weight_map.values()))
    missing = [path for path in needed if path not in source.files()]
    if len(missing) == len(needed) and "model.safetensors" in source.files():
        return None  # a left-over index beside a complete single file
    if missing:
        raise CheckpointError(_missing(missing, len(needed)))
    return weight_map


def _inside(path: str) -> bool:
    return (
        path.isprintable() and "\\" not in path and not path.startswith("/") and ".." not in path.split("/")
    )


def _missing(missing: Sequence[str], count: int) -> str:
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return (
        f"{named} missing ({len(missing)} of {count} weight files); download the model again to complete it"
    )


def _unindexed(source: Source) -> list[str]:
    files = source.files()
    if "model.safetensors" in files:
        return ["model.safetensors"]
    candidates = [
        path
        for path in files
        if path.endswith(".safetensors") and "/" not in path and not path.startswith(NOT_WEIGHTS)
    ]
    shards = {path: found for path in candidates if (found := SHARD.fullmatch(path))}
    if shards:
        stem, count = next((found["stem"], int(found["count"])) for found in shards.values())
        needed = [
            f"{stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, min(count, 9999) + 1)
        ]
        missing = [path for path in needed if path not in files]
        if missing:
            raise CheckpointError(_missing(missing, count))
        return needed
    if len(candidates) == 1:
        return candidates
    if candidates:
        raise CheckpointError(f"cannot tell which files are the weights: {', '.join(sorted(candidates)[:5])}")
    other = sorted(
        {path.rsplit(".", 1)[-1] for path in files if path.endswith((".bin", ".pt", ".pth", ".gguf"))}
    )
    found_instead = f" (weights as .{', .'.join(other)} were found)" if other else ""
    raise CheckpointError(
        f"there are no safetensors weights{found_instead}; fetch the model's safetensors files"
    )
