"""What the operator of a model signs: the manifest of what is in the directory, and how many experts it has.

The last manifest signed for each name is kept. A start with the same files and web sources uses it again while it has
half of its time left; others, or a manifest about to expire, get the next version. So the version only ever
grows, and grows whenever the content changes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import SwarmError, clean_text
from swarm.peers.inventory import HashedFile
from swarm.trust.files import write_atomically
from swarm.trust.keyring import Keyring
from swarm.trust.manifest import MAX_NAME_CHARS, Manifest, SignedManifest, is_name, parse_signed, sign
from swarm.trust.sources import WebSource
from swarm.wire.keys import KeyPair
from swarm.wire.messages.tracker import layout_statement

LIFETIME_S = 60 * 24 * 3600
"""How long a manifest is accepted after it was signed; a running server signs again at half of it."""
# A client's clock may be a little behind ours.
_BACKDATED_S = 300


class UnfitName(SwarmError):
    """A model cannot be called “{name}”: a name has 1 to {most} characters, no control characters, and no space at
    its ends. Give it another with --name NAME."""


class LastManifestDamaged(SwarmError):
    """{path}, the last manifest signed for “{name}”, is damaged ({reason}). Restore it; or delete it and
    start with --manifest-version above the last one, or those who know the model will refuse it."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A signed manifest and the operator's signature over the layout of experts, ready for a tracker."""

    signed: SignedManifest
    experts_in_layer: tuple[int, ...]
    layout_signature: bytes
    renewed: bool
    """Signed now, rather than used again."""

    @property
    def root(self) -> bytes:
        """The manifest's root."""
        return self.signed.manifest.root


def name_for(directory: Path, chosen: str | None = None) -> str:
    """What a directory's model is called: as chosen, else as the directory is. Raises UnfitName."""
    name = chosen or directory.resolve().name
    if not is_name(name):
        raise UnfitName(name=clean_text(name, limit=MAX_NAME_CHARS), most=MAX_NAME_CHARS)
    return name


def publish(
    name: str,
    files: Sequence[HashedFile],
    experts_in_layer: Sequence[int],
    operator: KeyPair,
    kept: Path,
    *,
    now_s: int,
    least_version: int = 1,
    keyring: Keyring | None = None,
    lifetime_s: int = LIFETIME_S,
    sources: Sequence[WebSource] = (),
) -> Publication:
    """The manifest of these files, signed; kept as the last one of its name.

    Args:
        name: The model's name.
        files: Its files, as hashed.
        experts_in_layer: How many experts each layer has; empty when unknown.
        operator: The operator's key.
        kept: Directory of the last manifests.
        now_s: Seconds since 1970.
        least_version: A version that a new manifest has at least, for when the last one was lost.
        keyring: The operator's keys through time; by default that key alone.
        lifetime_s: How long a new manifest is accepted.
        sources: Where on the web the files lie too.

    Raises:
        LastManifestDamaged: the last manifest of this name cannot be read.
        BadManifest: a file's name cannot be part of a manifest.
        OSError: it could not be kept.
    """
    entries, addresses = tuple(file.entry for file in files), tuple(map(str, sources))
    keyring = keyring or Keyring.start(operator)
    last = _last(kept, name)
    version = least_version
    if last is not None:
        if (
            last.manifest.files == entries
            and last.manifest.sources == addresses
            and last.signer == operator.key
            and last.keyring == keyring
            and last.manifest.version >= least_version
            and last.manifest.expires - now_s > lifetime_s // 2
        ):
            return _publication(last, experts_in_layer, operator, renewed=False)
        version = max(version, last.manifest.version + 1)
    manifest = Manifest(
        name=name,
        version=version,
        issued=now_s - _BACKDATED_S,
        expires=now_s + lifetime_s,
        files=entries,
        sources=addresses,
    )
    signed = sign(manifest, operator, keyring)
    write_atomically(_place(kept, name), signed.encode())
    return _publication(signed, experts_in_layer, operator, renewed=True)


def _publication(
    signed: SignedManifest, experts_in_layer: Sequence[int], operator: KeyPair, *, renewed: bool
) -> Publication:
    layout = tuple(experts_in_layer)
    return Publication(signed, layout, operator.sign(layout_statement(signed.manifest.root, layout)), renewed)


def _place(kept: Path, name: str) -> Path:
    return kept / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.manifest"


def _last(kept: Path, name: str) -> SignedManifest | None:
    path = _place(kept, name)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return parse_signed(content)
    except SwarmError as error:
        raise LastManifestDamaged(path=path, name=name, reason=error) from error
