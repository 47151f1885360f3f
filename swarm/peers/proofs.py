"""The proofs of wrong answers that this machine found: files named by their digests, the latest of them.

Donors' keys are free, and each may leave a proof of up to 6 MiB here, so the oldest make room for new ones.
"""

from pathlib import Path

from blake3 import blake3

from swarm.trust.files import write_atomically

MOST_PROOFS = 64
MOST_BYTES = 128 << 20
_NAME_CHARS = 32


def keep_proof(folder: Path, proof: bytes) -> None:
    """Keeps a proof, and lets the oldest go that there is no room for. OSError."""
    path = _path(folder, blake3(proof).digest())
    write_atomically(path, proof)
    count = size = 0
    known = [(one.stat(), one) for one in folder.glob("*.proof")]
    for status, one in sorted(known, key=lambda found: found[0].st_mtime_ns, reverse=True):
        count, size = count + 1, size + status.st_size
        if one != path and (count > MOST_PROOFS or size > MOST_BYTES):
            one.unlink(missing_ok=True)


def kept_proof(folder: Path, digest: bytes) -> bytes | None:
    """The proof with a digest, when this machine keeps it. OSError when it cannot be read."""
    path = _path(folder, digest)
    if not path.is_file():
        return None
    proof = path.read_bytes()
    return proof if blake3(proof).digest() == digest else None


def _path(folder: Path, digest: bytes) -> Path:
    return folder / f"{digest.hex()[:_NAME_CHARS]}.proof"
