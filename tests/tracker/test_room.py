"""What makes room for a new version: first names that nobody serves, then its own earlier versions, never others'."""

import pytest

from tracker.room import STRANGERS, Kept, NoRoom, Room, to_drop

HERE, THERE = "198.51.7.0/24", "198.51.8.0/24"
ROOM = Room(names=4, bytes=100, names_a_network=3, bytes_a_network=60)


def kept(name: str, size: int, version: int = 1, network: str | None = HERE) -> Kept:
    return Kept(f"{name} {version}".encode(), name, network, size)


NEW = kept("new", 20, version=9)


def test_what_fits_drops_nothing() -> None:
    assert (
        to_drop(NEW, [kept("new", 20)], [kept("a", 20), kept("b", 40, network=THERE)], ["a", "b"], ROOM) == []
    )


@pytest.mark.parametrize(
    ("older", "others", "gone", "dropped"),
    [
        ([], [kept("a", 50)], ["a"], [b"a 1"]),
        ([], [kept("a", 20), kept("b", 20), kept("b", 20, 2)], ["b", "a"], [b"b 1", b"b 2"]),
        ([kept("new", 30, 1), kept("new", 30, 2)], [], [], [b"new 1"]),
        ([kept("new", 30)], [kept("a", 30)], ["a"], [b"a 1"]),
        ([kept("new", 30)], [kept("a", 30)], [], [b"new 1"]),
        ([], [kept("a", 5), kept("b", 5), kept("c", 5)], ["c"], [b"c 1"]),
        ([], [kept(name, 5, network=THERE) for name in "abcd"], ["d", "c"], [b"d 1"]),
        ([], [kept("a", 70, network=None), kept("b", 30, network=THERE)], ["b"], [b"b 1"]),
    ],
)
def test_what_goes_first(
    older: list[Kept], others: list[Kept], gone: list[str], dropped: list[bytes]
) -> None:
    assert to_drop(NEW, older, others, gone, ROOM) == dropped


@pytest.mark.parametrize(
    ("others", "gone", "reason"),
    [
        ([kept("a", 50)], [], "0 MiB for manifests from 198.51.7.0/24"),
        ([kept("a", 50), kept("b", 5, network=THERE)], ["b"], "from 198.51.7.0/24"),
        ([kept("a", 90, network=THERE)], [], "all of them in use"),
        ([kept(name, 1, network=THERE) for name in "abcd"], [], "4 names, all of them in use"),
        ([kept(name, 1) for name in "abc"], [], "3 names from"),
    ],
)
def test_what_does_not_fit_is_refused_and_others_stay(
    others: list[Kept], gone: list[str], reason: str
) -> None:
    with pytest.raises(NoRoom) as told:
        to_drop(NEW, [], others, gone, ROOM)
    assert reason in str(told.value)


def test_who_is_not_bounded_is_bounded_with_everybody() -> None:
    new = kept("new", 20, network=None)
    assert to_drop(new, [], [kept("a", 80)], [], ROOM) == []
    with pytest.raises(NoRoom):
        to_drop(new, [], [kept("a", 81)], [], ROOM)


def test_large_models_fit() -> None:
    """Three versions of 300 GB, or the longest manifest there may be, from one network."""
    for size, versions in ((20 << 20, 3), (84 << 20, 1)):
        older = [kept("new", size, version) for version in range(1, versions)]
        assert to_drop(kept("new", size, 9), older, [], [], STRANGERS) == []
