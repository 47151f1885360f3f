"""What options take: sizes as people write them, numbers, one swarm, files that can be written."""

from pathlib import Path

import click
import pytest

from swarm.cli.options import DIRECTORY, SIZE, Number, check_writable, parse_target


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("500MB", 500_000_000),
        ("1.5GiB", 3 << 29),
        ("8g", 8_000_000_000),
        ("2 TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert SIZE.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "0", "0GB", "0.2", "-1", "8 gigs", "GB", "1e9", "8GBB", "٣GB!"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SIZE.convert(text, None, None)


def test_a_swarm_is_named_once() -> None:
    assert parse_target("swarm://x", None) == "swarm://x"
    assert parse_target(None, "host") == "host"
    assert parse_target(None, None) is None
    for invite, tracker in (("swarm://x", "host"), ("", "host"), ("", None), (None, " ")):
        with pytest.raises(click.UsageError):
            parse_target(invite, tracker)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "warm", "1,5"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Number(min=0).convert(text, None, None)


def test_an_empty_path_names_nothing() -> None:
    assert DIRECTORY.convert("here", None, None) == Path("here")
    with pytest.raises(click.BadParameter):
        DIRECTORY.convert("", None, None)


def test_a_file_that_cannot_be_written_is_named_with_its_option(tmp_path: Path) -> None:
    check_writable(tmp_path / "new", "--out")
    (tmp_path / "file").write_text("")
    check_writable(tmp_path / "file", "--out")
    for path in (tmp_path, tmp_path / "none" / "file", tmp_path / "file" / "file"):
        with pytest.raises(click.ClickException, match="--out") as told:
            check_writable(path, "--out")
        assert str(path if path == tmp_path else path.parent) in str(told.value)
