"""Messages: declared bounds, strict decoding, and declarations that leave something out."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, NewType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.wire.messages import (
    U64,
    BadMessage,
    Bounds,
    Failure,
    Message,
    decode_fields,
    encode_fields,
    register,
)

Digest = NewType("Digest", bytes)


@dataclass(frozen=True, slots=True)
class Part:
    name: Annotated[str, Bounds(1, 5)]
    size: Annotated[int, Bounds(0, 100)]


@register("test-everything")
@dataclass(frozen=True, slots=True)
class Everything(Message):
    number: Annotated[int, Bounds(-5, U64)]
    share: Annotated[float, Bounds(0, 1)]
    text: Annotated[str, Bounds(0, 3)]
    digest: Annotated[Digest, Bounds(4, 4)]
    flag: bool
    parts: Annotated[tuple[Part, ...], Bounds(0, 2)]
    numbers: Annotated[tuple[Annotated[int, Bounds(0, 9)], ...], Bounds(1, 3)]
    hint: Annotated[str, Bounds(1, 9)] | None = None

    def __post_init__(self) -> None:
        if self.number == 13:
            raise ValueError("thirteen is not a number here")


GOOD = Everything(7, 0.5, "abc", Digest(b"1234"), True, (Part("a", 1), Part("b", 100)), (1, 2))
FIELDS: dict[str, Any] = {
    "number": 7,
    "share": 0.5,
    "text": "abc",
    "digest": b"1234",
    "flag": True,
    "parts": [{"name": "a", "size": 1}, {"name": "b", "size": 100}],
    "numbers": [1, 2],
    "hint": None,
}


def test_there_and_back() -> None:
    assert encode_fields(GOOD) == FIELDS
    assert decode_fields("test-everything", FIELDS) == GOOD


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", -6),
        ("number", U64 + 1),
        ("number", 1.0),
        ("number", True),
        ("number", "1"),
        ("number", None),
        ("number", 13),
        ("share", 1),
        ("share", 1.1),
        ("share", -0.1),
        ("share", math.nan),
        ("share", math.inf),
        ("text", "abcd"),
        ("text", b"abc"),
        ("text", None),
        ("digest", b"123"),
        ("digest", b"12345"),
        ("digest", "1234"),
        ("flag", 1),
        ("flag", None),
        ("parts", None),
        ("parts", {}),
        ("parts", [1]),
        ("parts", [{"name": "a"}]),
        ("parts", [{"name": "a", "size": 1, "more": 2}]),
        ("parts", [{"name": "", "size": 1}]),
        ("parts", [{"name": "a", "size": 101}]),
        ("parts", [{"name": "a", "size": 1}] * 3),
        ("numbers", []),
        ("numbers", [1, 2, 3, 4]),
        ("numbers", [10]),
        ("numbers", ["1"]),
        ("hint", ""),
        ("hint", 5),
    ],
)
def test_wrong_fields_are_refused(field: str, value: Any) -> None:
    with pytest.raises(BadMessage, match="test-everything"):
        decode_fields("test-everything", FIELDS | {field: value})


def test_missing_surplus_and_unknown() -> None:
    for name in FIELDS:
        with pytest.raises(BadMessage, match=f"{name} is missing"):
            decode_fields("test-everything", {key: FIELDS[key] for key in FIELDS if key != name})
    with pytest.raises(BadMessage, match="surplus is not a field"):
        decode_fields("test-everything", FIELDS | {"surplus": 1})
    with pytest.raises(BadMessage, match="not a map"):
        decode_fields("test-everything", [1, 2])
    with pytest.raises(BadMessage, match="nobody here knows"):
        decode_fields("\x1b[31m", {})


def test_our_own_messages_are_held_to_the_same_bounds() -> None:
    for wrong in (Failure("", ""), Failure("x", "y" * 1001), Failure("x", "y", -1), Failure(b"x", "y")):  # type: ignore[arg-type]
        with pytest.raises(BadMessage):
            encode_fields(wrong)
    with pytest.raises(BadMessage):
        encode_fields(Everything(1, 0.5, "", Digest(b"1234"), True, ("no part",), (1,)))  # type: ignore[arg-type]
    with pytest.raises(BadMessage):
        encode_fields(Everything(1, 0.5, "", Digest(b"1234"), True, (), [1]))  # type: ignore[arg-type]


def test_declarations_that_leave_bounds_out_are_refused() -> None:
    @dataclass(frozen=True)
    class NoBounds(Message):
        number: int

    @dataclass(frozen=True)
    class NoItemBounds(Message):
        numbers: Annotated[tuple[int, ...], Bounds(0, 3)]

    @dataclass(frozen=True)
    class NoType(Message):
        anything: Annotated[dict[str, int], Bounds(0, 3)]

    @dataclass(frozen=True)
    class TwoTypes(Message):
        either: Annotated[int, Bounds(0, 3)] | Annotated[str, Bounds(0, 3)]

    for cls in (NoBounds, NoItemBounds, NoType, TwoTypes):
        with pytest.raises(TypeError):
            register(f"test-{cls.__name__}")(cls)
    with pytest.raises(TypeError, match="not a registered message"):
        encode_fields(NoBounds(1))
    with pytest.raises(TypeError, match="two messages"):
        register("ping")(Everything)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*FIELDS, "other"]), scalars | st.lists(scalars, max_size=3), max_size=4)
)
def test_random_fields_are_a_message_or_refused(changes: dict[str, Any]) -> None:
    try:
        message = decode_fields("test-everything", FIELDS | changes)
    except BadMessage:
        return
    assert encode_fields(message) == FIELDS | changes
