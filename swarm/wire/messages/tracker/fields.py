"""Fields that several messages of the tracker share, with their bounds."""

from typing import Annotated

from swarm.wire.keys import PeerKey
from swarm.wire.messages.codec import U32, U64, Bounds

MAX_SET_BYTES = (1 << 18) + 1
"""The longest encoded set: two million chunks in any pattern."""
MAX_LAYERS = 1024
MOST_EXPERTS = 65_535
"""In one layer."""
Key = Annotated[PeerKey, Bounds(32, 32)]
Root = Annotated[bytes, Bounds(32, 32)]
Profile = Annotated[bytes, Bounds(32, 32)]
"""The digest of a numeric profile: experts of different profiles never answer for each other."""
Digest = Annotated[bytes, Bounds(32, 32)]
Count = Annotated[int, Bounds(0, U32)]
Number = Annotated[int, Bounds(0, U64)]
SetBytes = Annotated[int, Bounds(1, MAX_SET_BYTES)]
ModelName = Annotated[str, Bounds(1, 200)]
Port = Annotated[int, Bounds(0, 65535)]
Layers = Annotated[tuple[Annotated[int, Bounds(0, MOST_EXPERTS)], ...], Bounds(0, MAX_LAYERS)]
