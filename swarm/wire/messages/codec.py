"""How a message is declared, and the strict way between its fields and CBOR values.

    @register("read-range", reply_payload=CHUNK_BYTES)
    @dataclass(frozen=True, slots=True)
    class ReadRange(Message):
        path: Annotated[str, Bounds(1, 1000)]          # 1 to 1000 characters
        offset: Annotated[int, Bounds(0, U64)]         # 0 <= offset <= U64
        digest: Annotated[bytes, Bounds(32, 32)]       # exactly 32 bytes
        share: Annotated[float, Bounds(0, 1)]          # finite, 0 <= share <= 1
        warm: bool
        parts: Annotated[tuple[Part, ...], Bounds(0, 64)]   # Part: another frozen dataclass, not registered
        hint: Annotated[str, Bounds(0, 80)] | None = None

Every number, text, byte string and list must have bounds: `register` refuses a class that leaves one out.
On the wire the fields are a map with exactly the class's field names (a default is only for the caller).
Decoding refuses an unknown name, a missing or surplus field, a wrong type and a value out of bounds.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from swarm.errors import SwarmError
from swarm.wire.cbor import Value

U32 = 2**32 - 1
U64 = 2**64 - 1


class BadMessage(SwarmError):
    """A message “{message}” that breaks its rules was refused: {reason}."""


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value of a number, or length of a text (characters), bytes or list."""

    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Message:
    """The base of all messages."""

    kind: ClassVar[str] = ""
    """Its name on the wire."""
    payload_limit: ClassVar[int] = 0
    """The most payload bytes that may follow it."""
    reply_payload: ClassVar[int] = 0
    """The most payload bytes of the reply to it: the server sets this memory aside before it answers."""


_Convert = Callable[[Any, str], Any]
_M = TypeVar("_M", bound=type[Message])


@dataclass(frozen=True)
class _Codec:
    names: frozenset[str]
    encoders: tuple[tuple[str, _Convert], ...]
    decoders: tuple[tuple[str, _Convert], ...]


_registry: dict[str, type[Message]] = {}
_codecs: dict[type, _Codec] = {}


def register(kind: str, *, payload: int = 0, reply_payload: int = 0) -> Callable[[_M], _M]:
    """Declares a frozen dataclass as the message ``kind``; see the module for how its fields are written."""

    def add(cls: _M) -> _M:
        if kind in _registry and _registry[kind].__qualname__ != cls.__qualname__:
            raise TypeError(f"two messages are named {kind}")
        cls.kind, cls.payload_limit, cls.reply_payload = kind, payload, reply_payload
        _codecs[cls] = _compile(cls)
        _registry[kind] = cls
        return cls

    return add


def encode_fields(message: Message) -> Value:
    """The map of a message's fields. Raises BadMessage when a field is outside its own declaration."""
    kind = type(message).kind
    return {name: convert(getattr(message, name), kind) for name, convert in _codec(type(message)).encoders}


def decode_fields(kind: str, fields: Value) -> Message:
    """The message ``kind`` with these fields. Raises BadMessage for anything its class does not allow."""
    cls = _registry.get(kind)
    if cls is None:
        raise BadMessage(message=kind, reason="nobody here knows that name")
    message: Message = _decode_record(cls, fields, kind)
    return message


def _codec(cls: type) -> _Codec:
    codec = _codecs.get(cls)
    if codec is None:
        raise TypeError(f"{cls.__name__} is not a registered message")
    return codec


def _compile(cls: type) -> _Codec:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass")
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [field.name for field in dataclasses.fields(cls)]
    pairs = {name: _converters(hints[name], f"{cls.__name__}.{name}") for name in names}
    return _Codec(
        frozenset(names),
        tuple((name, pairs[name][0]) for name in names),
        tuple((name, pairs[name][1]) for name in names),
    )


def _decode_record(cls: type, fields: Any, kind: str) -> Any:
    codec = _codecs[cls]
    if not isinstance(fields, dict):
        raise BadMessage(message=kind, reason="its fields are not a map")
    if fields.keys() != codec.names:
        odd = sorted(fields.keys() ^ codec.names)[0]
        raise BadMessage(message=kind, reason=f"{odd} is {'not a field' if odd in fields else 'missing'}")
    try:
        return cls(**{name: convert(fields[name], kind) for name, convert in codec.decoders})
    except ValueError as error:  # a class may check more in __post_init__
        raise BadMessage(message=kind, reason=str(error)) from None


def _encode_record(cls: type, record: Any, kind: str) -> Value:
    if type(record) is not cls:
        raise BadMessage(message=kind, reason=f"{type(record).__name__} where {cls.__name__} belongs")
    return {name: convert(getattr(record, name), kind) for name, convert in _codecs[cls].encoders}


def _converters(hint: Any, where: str, bounds: Bounds | None = None) -> tuple[_Convert, _Convert]:
    """The encoder and the decoder of one field's type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = [extra for extra in arguments[1:] if isinstance(extra, Bounds)]
        return _converters(arguments[0], where, found[0] if found else None)
    if isinstance(hint, typing.NewType):
        return _converters(hint.__supertype__, where, bounds)
    if origin in (types.UnionType, typing.Union):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) != 1 or len(arguments) != 2:
            raise TypeError(f"{where}: only “X | None” may be a union")
        encode, decode = _converters(others[0], where, bounds)
        return _optional(encode), _optional(decode)
    if hint is bool:
        check = _check_bool(where)
        return check, check
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint not in _codecs:
            _codecs[hint] = _compile(hint)
        return (
            lambda record, kind: _encode_record(hint, record, kind),
            lambda fields, kind: _decode_record(hint, fields, kind),
        )
    if bounds is None:
        raise TypeError(f"{where}: {hint} needs Bounds")
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        encode, decode = _converters(arguments[0], where)
        return _check_list(where, bounds, tuple, list, encode), _check_list(
            where, bounds, list, tuple, decode
        )
    if hint in (int, float):
        check = _check_number(where, bounds, hint)
    elif hint in (str, bytes):
        check = _check_length(where, bounds, hint)
    else:
        raise TypeError(f"{where}: {hint} is no type of a field")
    return check, check


def _optional(convert: _Convert) -> _Convert:
    return lambda value, kind: None if value is None else convert(value, kind)


def _check_bool(where: str) -> _Convert:
    def check(value: Any, kind: str) -> Any:
        if value is not True and value is not False:
            raise BadMessage(message=kind, reason=f"{where} is not true or false")
        return value

    return check


def _check_number(where: str, bounds: Bounds, number: type) -> _Convert:
    least, greatest = bounds.least, bounds.greatest

    def check(value: Any, kind: str) -> Any:
        found: type = type(value)
        if found is not number:
            raise BadMessage(message=kind, reason=f"{where} is not of type {number.__name__}")
        if not least <= value <= greatest or (number is float and not math.isfinite(value)):
            raise BadMessage(message=kind, reason=f"{where} is out of its bounds")
        return value

    return check


def _check_length(where: str, bounds: Bounds, sort: type) -> _Convert:
    least, greatest = bounds.least, bounds.greatest

    def check(value: Any, kind: str) -> Any:
        found: type = type(value)
        if found is not sort:
            raise BadMessage(message=kind, reason=f"{where} is not of type {sort.__name__}")
        if not least <= len(value) <= greatest:
            raise BadMessage(message=kind, reason=f"{where} has a length out of its bounds")
        return value

    return check


def _check_list(where: str, bounds: Bounds, source: type, target: type, item: _Convert) -> _Convert:
    least, greatest = bounds.least, bounds.greatest

    def check(value: Any, kind: str) -> Any:
        found: type = type(value)
        if found is not source:
            raise BadMessage(message=kind, reason=f"{where} is not a list")
        if not least <= len(value) <= greatest:
            raise BadMessage(message=kind, reason=f"{where} has a length out of its bounds")
        return target([item(entry, kind) for entry in value])

    return check
