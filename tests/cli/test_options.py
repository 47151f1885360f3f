"""Sizes as people write them."""

import click
import pytest

from swarm.cli.options import SIZE, parse_target
from swarm.cli.output import size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("500MB", 500_000_000),
        ("1.5GiB", 3 << 29),
        ("8g", 8_000_000_000),
        ("2 TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert SIZE.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "-1", "8 gigs", "GB", "1e9", "8GBB", "٣GB!"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SIZE.convert(text, None, None)


def test_a_swarm_is_named_once() -> None:
    assert parse_target("swarm://x", None) == "swarm://x"
    assert parse_target(None, "host") == "host"
    assert parse_target(None, None) is None
    with pytest.raises(click.UsageError):
        parse_target("swarm://x", "host")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4.0e9, "4.0 GB"), (999_999, "1.0 MB"), (3e12, "3.0 TB")],
)
def test_sizes_for_people(count: float, text: str) -> None:
    assert size(count) == text
