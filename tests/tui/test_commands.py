"""Parsing and completion of slash commands."""

from __future__ import annotations

import pytest

from tui.commands import (
    COMMANDS,
    CommandError,
    Invocation,
    complete,
    parse,
    sampling_value,
    setting_name,
    size_value,
    with_setting,
)
from tui.options import Sampling


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("hello", "hello"),
        ("  hello  ", "hello"),
        ("/help", Invocation("help")),
        ("/HELP set", Invocation("help", "set")),
        ("/?", Invocation("help")),
        ("/exit", Invocation("quit")),
        ("/system You are\nbrief.", Invocation("system", "You are\nbrief.")),
        ("//help me", "/help me"),
        ("/etc/hosts is what?", "/etc/hosts is what?"),
        ("/", "/"),
        ("/ x", "/ x"),
        ("/123", "/123"),
        ("", ""),
    ],
)
def test_parse(line: str, parsed: Invocation | str) -> None:
    assert parse(line) == parsed


def test_an_unknown_command_names_the_nearest() -> None:
    with pytest.raises(CommandError, match=r"no command /modle; did you mean /model\?"):
        parse("/modle x")
    with pytest.raises(CommandError, match="/help lists them"):
        parse("/zzzz")


def test_every_command_parses() -> None:
    for command in COMMANDS:
        assert parse(f"/{command.name} x") == Invocation(command.name, "x")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("top-k", "40", 40),
        ("seed", "default", None),
        ("max-tokens", "off", None),
    ],
)
def test_sampling_values(name: str, text: str, value: float | None) -> None:
    assert sampling_value(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("temperature", "hot"), ("top-k", "1.5"), ("top-p", "1.1"), ("max-tokens", "0"), ("temperature", "nan")],
)
def test_bad_sampling_values_say_why(name: str, text: str) -> None:
    with pytest.raises(CommandError, match=name):
        sampling_value(name, text)


def test_a_setting_changes_one_value_and_can_be_taken_back() -> None:
    warm = with_setting(Sampling(top_k=5), "temperature", "0.5")
    assert warm == Sampling(temperature=0.5, top_k=5)
    assert with_setting(warm, "top-k", "default") == Sampling(temperature=0.5)


def test_setting_names_may_be_short_if_clear() -> None:
    assert setting_name("temp") == "temperature"
    assert setting_name("top_p") == "top-p"
    for unclear in ("top", "", "x"):
        with pytest.raises(CommandError):
            setting_name(unclear)


def test_sizes() -> None:
    assert size_value("8GB") == 8_000_000_000
    assert size_value("1.5 gib") == 1_610_612_736
    with pytest.raises(CommandError, match="not a size"):
        size_value("much")


def test_complete_names() -> None:
    assert [found.label for found in complete("/s", {})] == ["/swarm", "/set", "/system", "/save", "/stats"]
    assert [found.line for found in complete("/swa", {})] == ["/swarm"]
    assert len(complete("/", {})) == len(COMMANDS)


@pytest.mark.parametrize("line", ["", "hello", "//s", "/nothing x", "/new x", "/s\nx"])
def test_nothing_to_complete(line: str) -> None:
    assert complete(line, {}) == []


def test_complete_arguments() -> None:
    known = {"models": ["olmoe", "qwen"], "conversations": ["2026-01-01 hello"]}
    assert [found.line for found in complete("/model q", known)] == ["/model qwen"]
    assert [found.line for found in complete("/load ", known)] == ["/load 2026-01-01 hello"]
    assert [found.line for found in complete("/set top", known)] == ["/set top-p ", "/set top-k "]
    assert [found.line for found in complete("/set theme l", known)] == ["/set theme light"]
    assert [found.label for found in complete("/copy ", known)] == ["code", "all"]
    assert [found.line for found in complete("/help swa", known)] == ["/help swarm"]
    assert complete("/model qwen", known) == []
    assert complete("/model ", {}) == []
