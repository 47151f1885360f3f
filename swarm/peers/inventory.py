"""What a model directory holds: its files, their chunk hashes, and whether they are still what was hashed.

Hashing is the slow part of `swarm serve`, so hashes are kept and used again while a file's device, inode,
size, mtime and ctime stay: any write, replacement or restore moves at least the ctime. The same five are
what a running server compares before and after each read.
"""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath

import cbor2

from engine.source import DirectorySource
from swarm.errors import SwarmError
from swarm.trust.files import write_atomically
from swarm.trust.manifest import CHUNK_BYTES, Digests, FileEntry, Manifest

# Left behind by editors, downloaders and version control; not part of a model.
_TRANSIENT = (".tmp", ".part", ".partial", ".incomplete", ".lock", ".crdownload", ".swp", "~")
_SETTLED_NS = 2_000_000_000
"""A file touched more recently than this could be written again without its timestamps moving, where they are
coarse; its hashes are not kept."""
_SPAN_BYTES = 8 * CHUNK_BYTES
"""What one thread hashes before it takes another piece of work."""


class NotADirectory(SwarmError):
    """{path} is neither a directory nor a GGUF file; --model takes such a file, or the directory that holds
    config.json and the weights."""


class NothingToServe(SwarmError):
    """{path} holds no files; --model takes the directory that holds config.json and the weights."""


class OddFile(SwarmError):
    """{path} is neither a file nor a directory; move it out of the model's directory."""


class BrokenLink(SwarmError):
    """{path} is a link to {target}, which is not there; download the file again, or remove the link."""


class LoopingLink(SwarmError):
    """{path} is a link to {target}, which leads back to the link; remove it from the model's directory."""


class NotThatModel(SwarmError):
    """{directory} is not {model} version {version} as its operator signed it: {difference}. Copy the model again, or
    {otherwise}."""


class ChangedWhileHashing(SwarmError):
    """{path} changed while it was being read; wait until whatever writes it is done and start again."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells one content of a file from another without reading it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        """The state in a stat result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file of the model, its hashes, and the state it had when they were taken."""

    entry: FileEntry
    state: FileState


@dataclass(frozen=True, slots=True)
class HashProgress:
    """How far hashing is. Bytes whose hashes were still known do not count."""

    done_bytes: int
    total_bytes: int
    reused_bytes: int
    path: str


def folder_of(model: Path) -> Path:
    """The directory that the paths of a model's files begin at: for a GGUF file the one it lies in."""
    return model.parent if model.is_file() else model


def list_files(directory: Path) -> dict[str, FileState]:
    """The files by relative path ("/" between parts), sorted; links are followed, hidden files left out.

    A link to a directory that it lies below is left out, too: what is there either has its place already, or is no
    part of the model.

    Of a GGUF file these are itself, or all of its parts.

    Raises:
        NotADirectory, NothingToServe, OddFile, BrokenLink, LoopingLink, OSError: the directory cannot be served as
            it is.
    """
    if directory.is_file() and directory.suffix == ".gguf":
        with DirectorySource(directory) as source:
            return {path: FileState.of((source.directory / path).stat()) for path in source.files()}
    if not directory.is_dir():
        raise NotADirectory(path=directory)
    above = frozenset(_identity(parent.stat()) for parent in directory.resolve().parents)
    found = dict(sorted(_walk(directory, PurePosixPath(), above)))
    if not found:
        raise NothingToServe(path=directory)
    return found


def _walk(
    directory: Path, below: PurePosixPath, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, FileState]]:
    """`above`: the directories on the way here."""
    above |= {_identity(directory.stat())}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(_TRANSIENT):
                continue
            path = Path(entry.path)
            status = _followed(entry)
            if stat.S_ISDIR(status.st_mode):
                if _identity(status) not in above:
                    yield from _walk(path, below / entry.name, above)
            elif stat.S_ISREG(status.st_mode):
                yield str(below / entry.name), FileState.of(status)
            else:
                raise OddFile(path=path)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _followed(entry: os.DirEntry[str]) -> os.stat_result:
    """What a name leads to, through links. Raises BrokenLink, LoopingLink, OSError."""
    try:
        return entry.stat()
    except OSError as error:
        kind = {errno.ENOENT: BrokenLink, errno.ELOOP: LoopingLink}.get(error.errno or 0)
        if kind is None or not entry.is_symlink():
            raise
        raise kind(path=entry.path, target=Path(entry.path).readlink()) from None


def hash_files(
    directory: Path,
    files: dict[str, FileState],
    kept: Path,
    *,
    threads: int | None = None,
    progress: Callable[[HashProgress], None] = lambda _: None,
    now_ns: Callable[[], int] = time.time_ns,
) -> tuple[HashedFile, ...]:
    """Chunk hashes of all files: those kept where the state is the same, the others by several threads.

    Args:
        directory: The model's directory, or its GGUF file.
        files: What `list_files` gave for it.
        kept: Directory of hashes kept from earlier; new ones are added.
        threads: Readers; as many as there are processors, when None.
        progress: Told about every piece read, in the caller's thread.
        now_ns: The clock that file timestamps are taken from.

    Raises:
        ChangedWhileHashing, OSError: a file was written to, or could not be read; nothing was kept for it.
    """
    started_ns = now_ns()
    directory = folder_of(directory)
    hashes = {path: _recall(kept, directory / path, state) for path, state in files.items()}
    missing = [path for path, known in hashes.items() if known is None]
    total = sum(files[path].size for path in missing)
    reused = sum(state.size for state in files.values()) - total
    done = 0
    progress(HashProgress(done, total, reused, ""))
    pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="hash")
    try:
        pieces = {
            path: [
                (length, pool.submit(_hash_span, directory / path, start, length))
                for start, length in _spans(files[path].size)
            ]
            for path in missing
        }
        for path in missing:
            digests = bytearray()
            for length, piece in pieces.pop(path):
                digests += piece.result()
                done += length
                progress(HashProgress(done, total, reused, path))
            _require_unchanged(directory / path, files[path])
            hashes[path] = known = Digests(bytes(digests))
            if files[path].ctime_ns < started_ns - _SETTLED_NS:
                _keep(kept, directory / path, files[path], known)
    finally:
        pool.shutdown(cancel_futures=True)
    for path, state in files.items():
        _require_unchanged(directory / path, state)
    return tuple(
        HashedFile(FileEntry(path, files[path].size, found or Digests(b"")), files[path])
        for path, found in hashes.items()
    )


def hash_signed(
    directory: Path,
    manifest: Manifest,
    kept: Path,
    *,
    otherwise: str,
    progress: Callable[[HashProgress], None] = lambda _: None,
) -> tuple[HashedFile, ...]:
    """The files of a signed manifest, as they are in a directory that is a copy of the model, hashed and the same.

    What else lies there is no part of what was signed, and is not read. `otherwise`: what to do instead of copying
    the model again, for the error.

    Raises:
        NotThatModel: a file is missing, or is another one.
        NotADirectory, NothingToServe, OddFile, BrokenLink, LoopingLink, ChangedWhileHashing, OSError: as the two
            above.
    """

    def differs(difference: str) -> NotThatModel:
        return NotThatModel(
            directory=directory,
            model=manifest.name,
            version=manifest.version,
            difference=difference,
            otherwise=otherwise,
        )

    listed = list_files(directory)
    for entry in manifest.files:
        if entry.path not in listed:
            raise differs(f"{entry.path} is missing")
        if listed[entry.path].size != entry.size:
            raise differs(f"{entry.path} has other content")
    wanted = {entry.path: listed[entry.path] for entry in manifest.files}
    hashed = hash_files(directory, wanted, kept, progress=progress)
    for entry, file in zip(manifest.files, hashed, strict=True):
        if file.entry != entry:
            raise differs(f"{entry.path} has other content")
    return hashed


def _require_unchanged(path: Path, state: FileState) -> None:
    if FileState.of(path.stat()) != state:
        raise ChangedWhileHashing(path=path)


def _spans(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _SPAN_BYTES):
        yield start, min(_SPAN_BYTES, size - start)


def _hash_span(path: Path, start: int, length: int) -> bytes:
    """The hashes of the chunks in a piece of a file that begins at a chunk's first byte."""
    digests = bytearray()
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        for offset in range(0, length, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, length - offset)
            digest = hashlib.sha256()
            while wanted:
                data = file.read(wanted)
                if not data:
                    raise ChangedWhileHashing(path=path)
                digest.update(data)
                wanted -= len(data)
            digests += digest.digest()
    return bytes(digests)


def _place(kept: Path, file: Path) -> Path:
    return kept / hashlib.sha256(os.fsencode(file.absolute())).hexdigest()


def _recall(kept: Path, file: Path, state: FileState) -> Digests | None:
    """The hashes kept for a file in exactly this state; None: there are none that can be read."""
    try:
        content = _place(kept, file).read_bytes()
    except FileNotFoundError:
        return None
    checksum, record = content[:32], content[32:]
    if hashlib.sha256(record).digest() != checksum:
        return None
    try:
        stored = cbor2.loads(record)
    except cbor2.CBORDecodeError:  # of another version
        return None
    if not isinstance(stored, dict) or stored.get("state") != list(astuple(state)):
        return None
    chunks = stored.get("chunks")
    return Digests(chunks) if isinstance(chunks, bytes) else None


def _keep(kept: Path, file: Path, state: FileState, digests: Digests) -> None:
    record = cbor2.dumps(
        {
            "path": os.fsencode(file.absolute()),
            "state": list(astuple(state)),
            "chunks": digests.joined,
        }
    )
    write_atomically(_place(kept, file), hashlib.sha256(record).digest() + record)
