"""Where on the web the files of a model lie too, as a manifest names it.

    https://example.org/models/olmoe         asked when no peer can give what is wanted
    first+https://example.org/models/olmoe   asked before any peer
    hf:OWNER/NAME@REVISION                   how a person may write a Hugging Face repository's address

A source needs to be neither trusted nor encrypted: what comes from it is checked like a peer's bytes.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from swarm.errors import SwarmError, clean_text

_FIRST = "first+"
_MAX_CHARS = 2000
_REPOSITORY = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_HOST = re.compile(
    r"(?=.{1,253}$)[\w-]{1,63}(\.[\w-]{1,63})*\.?|(?=.*:)[0-9a-f:.]+", re.ASCII | re.IGNORECASE
)


class BadSource(SwarmError):
    """“{source}” is no web source: {reason}. Give an http(s) address or hf:OWNER/NAME@REVISION, with first+ before
    it if it is to be asked before peers."""


@dataclass(frozen=True, slots=True)
class WebSource:
    """A web address below which a model's files lie."""

    address: str
    first: bool = False
    """Whether it is asked before peers, rather than after all of them."""

    def __str__(self) -> str:
        return _FIRST * self.first + self.address

    @property
    def public(self) -> str:
        """The address without what may be secret in it: who asks, and the query of a presigned one."""
        parts = urlsplit(self.address)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def parse_source(text: str) -> WebSource:
    """What a manifest says. Raises BadSource."""
    address = text.removeprefix(_FIRST)
    if reason := _objection(address):
        raise BadSource(source=clean_text(text, limit=80), reason=reason)
    return WebSource(address, first=address != text)


def read_source(text: str) -> WebSource:
    """What a person typed: also a Hugging Face repository by its name. Raises BadSource."""
    first = text.startswith(_FIRST)
    match = _REPOSITORY.fullmatch(text.removeprefix(_FIRST))
    if match is None:
        return parse_source(text)
    name, revision = match.groups()
    return WebSource(f"https://huggingface.co/{name}/resolve/{revision or 'main'}", first)


def _objection(address: str) -> str:
    """Why an address cannot be one; empty when it can."""
    if not address.startswith(("https://", "http://")):
        return "it does not begin with https:// or http://"
    if len(address) > _MAX_CHARS:
        return f"it is longer than {_MAX_CHARS} characters"
    if not address.isascii() or not address.isprintable() or " " in address:
        return "it holds characters that no web address holds"
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    return "" if host and _HOST.fullmatch(host) else "it names no host"
