"""What an operator's key leaves behind, so that the key can stay away from the server: signed models and keyrings.

`write_publication` makes a file of everything that a server publishes about a model; `read_publication` verifies one.
A keyring lies beside the key that is its latest, as KEYFILE.keyring.
"""

from pathlib import Path

from swarm.errors import SwarmError
from swarm.peers.operator import Publication
from swarm.trust.files import write_atomically
from swarm.trust.identity import Identity
from swarm.trust.keyring import Keyring
from swarm.trust.manifest import MAX_MANIFEST_BYTES, parse_signed
from swarm.wire import cbor
from swarm.wire.keys import verify
from swarm.wire.messages.tracker import layout_statement
from swarm.wire.messages.tracker.fields import MOST_EXPERTS

MOST_BYTES = MAX_MANIFEST_BYTES + (1 << 20)


class NotAPublication(SwarmError):
    """{path} is not a signed model ({reason}); make it anew with `swarm key sign`."""


class NotAKeyring(SwarmError):
    """{path} is not the keyring of that key ({reason}); restore it from your backup."""


def write_publication(path: Path, publication: Publication) -> None:
    """Writes a signed model. Raises OSError."""
    value: dict[str, cbor.Value] = {
        "format": 1,
        "signed": publication.signed.encode(),
        "layout": list(publication.experts_in_layer),
        "signature": publication.layout_signature,
    }
    write_atomically(path, cbor.encode(value), mode=0o644)


def read_publication(path: Path) -> Publication:
    """Reads and verifies a signed model.

    Raises:
        NotAPublication: it is something else, or was changed.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            value = cbor.decode(file.read(MOST_BYTES))
        if not isinstance(value, dict) or value.keys() != {"format", "signed", "layout", "signature"}:
            raise NotAPublication(path=path, reason="it has another form")
        if value["format"] != 1:
            raise NotAPublication(path=path, reason="it is of a later version of Swarm")
        content, counts, signature = value["signed"], value["layout"], value["signature"]
        if not isinstance(content, bytes) or not isinstance(signature, bytes) or not isinstance(counts, list):
            raise NotAPublication(path=path, reason="it has another form")
        layout = tuple(count for count in counts if type(count) is int and 0 <= count <= MOST_EXPERTS)
        if len(layout) != len(counts):
            raise NotAPublication(path=path, reason="its layout holds something else than numbers of experts")
        signed = parse_signed(content)
        verify(signed.signer, layout_statement(signed.manifest.root, layout), signature)
    except NotAPublication:
        raise
    except SwarmError as error:
        raise NotAPublication(path=path, reason=error) from error
    return Publication(signed, layout, signature, renewed=False)


def keyring_file(key_file: Path) -> Path:
    """Where the keyring of a key lies."""
    return key_file.with_name(key_file.name + ".keyring")


def load_keyring(key_file: Path, operator: Identity) -> Keyring:
    """The keyring whose latest key this is; that key alone when there is no file. Raises NotAKeyring, OSError."""
    path = keyring_file(key_file)
    try:
        keyring = Keyring.parse(path.read_bytes())
    except FileNotFoundError:
        return Keyring.start(operator)
    except SwarmError as error:
        raise NotAKeyring(path=path, reason=error) from error
    if keyring.latest != operator.key:
        raise NotAKeyring(path=path, reason="its latest key is another one")
    return keyring


def rotate(key_file: Path, new_file: Path) -> Keyring:
    """Makes a key that succeeds another, and its keyring; both may sign until `retire`.

    Raises:
        UnreadableKey, KeyFileTooOpen, NotAKeyring: the old key cannot be used, or there is a file at the new place.
    """
    old = Identity.load(key_file)
    new = Identity(Identity.generate().seed)
    keyring = load_keyring(key_file, old).succeed(old, new)
    new.save(new_file)
    write_atomically(keyring_file(new_file), keyring.encode())
    return keyring


def retire(key_file: Path) -> Keyring:
    """Lets only this key, the latest, sign from now on. Raises as `rotate`."""
    latest = Identity.load(key_file)
    keyring = load_keyring(key_file, latest).retire(latest)
    write_atomically(keyring_file(key_file), keyring.encode())
    return keyring
