"""A model's manifest: each file with its size and the sha256 of each MiB, signed by the operator.

The body is canonical CBOR, so one manifest has one byte string and one root (BLAKE3 of it). A manifest is
checked whole when it is made and when it is read: one bad entry refuses all of it. It knows nothing of
which operator to believe or of earlier versions: `memory` does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import overload

from blake3 import blake3

from swarm.errors import SwarmError, clean_text
from swarm.trust.keyring import Keyring
from swarm.trust.sources import BadSource, parse_source
from swarm.wire import cbor
from swarm.wire.keys import BadSignature, KeyPair, PeerKey, verify

CHUNK_BYTES = 1 << 20
DIGEST_BYTES = 32
MAX_MANIFEST_BYTES = 64 << 20
MAX_SIGNED_BYTES = MAX_MANIFEST_BYTES + (64 << 10)
"""A signed one: body, keyring and signature."""
MAX_FILES = 100_000
_MOST_VALUES = 4 * MAX_FILES + 1000
"""An entry of the list of files, and three fields in it."""
MAX_SOURCES = 64
MAX_NAME_CHARS = 120
_MAX_PATH_BYTES = 1000
_MAX_PART_BYTES = 255
_TIME_LIMIT = 1 << 40
_ROOT_CONTEXT = "swarm manifest root v1"
_CONTENT_CONTEXT = "swarm manifest content v1"
_SIGNATURE_TAG = b"swarm manifest signature v1\0"


class BadManifest(SwarmError):
    """The manifest was refused whole: {reason}."""


class Digests(Sequence[bytes]):
    """The sha256 of each chunk of a file, kept as one byte string."""

    __slots__ = ("joined",)

    def __init__(self, joined: bytes) -> None:
        if len(joined) % DIGEST_BYTES:
            raise BadManifest(reason="a list of hashes ends in the middle of one")
        self.joined = joined

    @classmethod
    def of(cls, digests: Iterable[bytes]) -> "Digests":
        """Joins single hashes."""
        return cls(b"".join(digests))

    def __len__(self) -> int:
        return len(self.joined) // DIGEST_BYTES

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"chunk {index} of {len(self)}")
        return self.joined[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digests) and self.joined == other.joined

    def __hash__(self) -> int:
        return hash(self.joined)

    def __repr__(self) -> str:
        return f"Digests({len(self)} chunks)"


@dataclass(frozen=True)
class FileEntry:
    """A file of the model: relative path with ``/``, size in bytes, sha256 of each MiB (or last part)."""

    path: str
    size: int
    chunks: Digests


@dataclass(frozen=True)
class Manifest:
    """What a model consists of. Times are whole seconds since 1970; files come sorted by path.

    Raises BadManifest when anything about it is not as it must be.
    """

    name: str
    version: int
    issued: int
    expires: int
    files: tuple[FileEntry, ...]
    sources: tuple[str, ...] = field(default=())
    """Where on the web the files lie too, in the form of `sources`."""

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def body(self) -> bytes:
        """The canonical bytes of it, which the root and the signature are over."""
        return cbor.encode(
            {
                "format": 1,
                "name": self.name,
                "version": self.version,
                "issued": self.issued,
                "expires": self.expires,
                "files": _files_value(self.files),
                "sources": list(self.sources),
            }
        )

    @cached_property
    def root(self) -> bytes:
        """The BLAKE3 of the body, 32 bytes: names this manifest among all others."""
        return blake3(self.body, derive_key_context=_ROOT_CONTEXT).digest()

    @cached_property
    def content(self) -> bytes:
        """The BLAKE3 of the files alone, 32 bytes: equal for two versions whose files are the same."""
        return blake3(cbor.encode(_files_value(self.files)), derive_key_context=_CONTENT_CONTEXT).digest()

    @cached_property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.size for entry in self.files)

    @classmethod
    def parse(cls, body: bytes) -> "Manifest":
        """Reads the canonical bytes. Raises BadManifest."""
        if len(body) > MAX_MANIFEST_BYTES:
            raise BadManifest(reason=f"it is larger than {MAX_MANIFEST_BYTES} bytes")
        try:
            value = cbor.decode(body, _MOST_VALUES)
        except cbor.BadEncoding as error:
            raise BadManifest(reason=str(error)) from None
        names = {"format", "name", "version", "issued", "expires", "files", "sources"}
        if not isinstance(value, dict) or value.keys() != names or value["format"] != 1:
            raise BadManifest(reason="its fields are not those of format 1; a newer version may be needed")
        files, sources = value["files"], value["sources"]
        if not isinstance(files, list) or not isinstance(sources, list):
            raise BadManifest(reason="its lists are not lists")
        if len(files) > MAX_FILES or len(sources) > MAX_SOURCES:
            raise BadManifest(reason="it lists too many files or sources")
        manifest = cls(
            name=_text(value["name"]),
            version=_number(value["version"]),
            issued=_number(value["issued"]),
            expires=_number(value["expires"]),
            files=tuple(_file(entry) for entry in files),
            sources=tuple(_text(source) for source in sources),
        )
        manifest.__dict__["body"] = bytes(body)  # canonical: encoding again would give the same bytes
        return manifest


@dataclass(frozen=True)
class SignedManifest:
    """A manifest, the operator's keyring, and the signature of one of its active keys over the root."""

    manifest: Manifest
    keyring: Keyring
    signer: PeerKey
    signature: bytes

    def encode(self) -> bytes:
        """The bytes that are stored and sent."""
        return cbor.encode(
            {
                "format": 1,
                "manifest": self.manifest.body,
                "keyring": self.keyring.encode(),
                "signer": self.signer,
                "signature": self.signature,
            }
        )


def sign(manifest: Manifest, operator: KeyPair, keyring: Keyring | None = None) -> SignedManifest:
    """Signs a manifest with an active key of the keyring (by default a keyring of just that key).

    Raises BadManifest when the keyring does not let this key sign.
    """
    keyring = keyring or Keyring.start(operator)
    if operator.key not in keyring.active:
        raise BadManifest(reason="the key that should sign it is not active in the keyring")
    signature = operator.sign(_SIGNATURE_TAG + manifest.root)
    return SignedManifest(manifest, keyring, operator.key, signature)


def parse_signed(data: bytes) -> SignedManifest:
    """Reads and verifies a signed manifest: encoding, every entry, keyring, signature.

    Whether the operator is the right one and the version not an old one is for `memory` to say.
    Raises BadManifest, BadKeyring, BadSignature.
    """
    if len(data) > MAX_SIGNED_BYTES:
        raise BadManifest(reason=f"it is larger than {MAX_SIGNED_BYTES} bytes")
    try:
        value = cbor.decode(data)
    except cbor.BadEncoding as error:
        raise BadManifest(reason=str(error)) from None
    names = {"format", "manifest", "keyring", "signer", "signature"}
    if not isinstance(value, dict) or value.keys() != names or value["format"] != 1:
        raise BadManifest(reason="it is not a signed manifest of format 1")
    body, rings = _bytes(value["manifest"]), _bytes(value["keyring"])
    signer, signature = _bytes(value["signer"]), _bytes(value["signature"])
    keyring = Keyring.parse(rings)
    if signer not in keyring.active:
        raise BadSignature(signer=signer)
    root = blake3(body, derive_key_context=_ROOT_CONTEXT).digest()
    verify(signer, _SIGNATURE_TAG + root, signature)  # before anything of the body is believed
    return SignedManifest(Manifest.parse(body), keyring, PeerKey(signer), signature)


def is_name(text: str) -> bool:
    """Whether a model may be called that."""
    return 0 < len(text) <= MAX_NAME_CHARS and clean_text(text) == text == text.strip()


def check_path(path: str) -> str:
    """Returns a path of a model file if it is safe to use below a directory. Raises BadManifest."""
    parts = path.split("/")
    reason = None
    if not path or len(path.encode("utf-8", "surrogatepass")) > _MAX_PATH_BYTES:
        reason = "it is empty or too long"
    elif clean_text(path) != path:
        reason = "it holds control characters"
    elif any(part in ("", ".", "..") for part in parts) or "\\" in path:
        reason = "it could lead out of its directory"
    elif any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        reason = "one of its names is too long"
    if reason:
        raise BadManifest(reason=f"the path “{clean_text(path, limit=80)}” is not safe: {reason}")
    return path


def _files_value(files: tuple[FileEntry, ...]) -> list[cbor.Value]:
    return [{"path": entry.path, "size": entry.size, "chunks": entry.chunks.joined} for entry in files]


def _check(manifest: Manifest) -> None:
    if not is_name(manifest.name):
        raise BadManifest(reason="its name is empty, too long or not clean text")
    if not 1 <= manifest.version < 1 << 53:
        raise BadManifest(reason="its version is not a positive number")
    if not 0 <= manifest.issued < manifest.expires < _TIME_LIMIT:
        raise BadManifest(reason="it does not expire after it was issued")
    if len(manifest.files) > MAX_FILES or len(manifest.sources) > MAX_SOURCES:
        raise BadManifest(reason="it lists too many files or sources")
    for source in manifest.sources:
        try:
            parse_source(source)
        except BadSource as error:
            raise BadManifest(reason=str(error)) from None
    previous = ""
    for entry in manifest.files:
        check_path(entry.path)
        if entry.path <= previous:
            raise BadManifest(reason="its files are not sorted by path, each once")
        if not 0 <= entry.size < 1 << 53 or -(-entry.size // CHUNK_BYTES) != len(entry.chunks):
            raise BadManifest(reason=f"size and number of hashes of “{entry.path}” do not fit together")
        previous = entry.path
    # With a separator below every other character, what lies in a folder comes next after a file of its name.
    paths = sorted(entry.path.replace("/", "\0") for entry in manifest.files)
    for path, after in pairwise(paths):
        if after.startswith(f"{path}\0"):
            folder = path.replace("\0", "/")
            raise BadManifest(reason=f"“{folder}” is a file and a folder")


def _file(value: cbor.Value) -> FileEntry:
    if not isinstance(value, dict) or value.keys() != {"path", "size", "chunks"}:
        raise BadManifest(reason="an entry's fields are not those of a file")
    return FileEntry(_text(value["path"]), _number(value["size"]), Digests(_bytes(value["chunks"])))


def _text(value: cbor.Value) -> str:
    if not isinstance(value, str):
        raise BadManifest(reason="a number or list stands where text belongs")
    return value


def _number(value: cbor.Value) -> int:
    if type(value) is not int:
        raise BadManifest(reason="text or a list stands where a number belongs")
    return value


def _bytes(value: cbor.Value) -> bytes:
    if not isinstance(value, bytes):
        raise BadManifest(reason="a text, number or list stands where bytes belong")
    return value
