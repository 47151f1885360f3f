"""Reads the TOML files that hold the words, phrasings and answers of the corpus."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def table(path: str) -> dict[str, Any]:
    """The TOML file `path` beside this module, its lists as tuples."""
    text = files("swarm.demo.corpus").joinpath(path).read_text(encoding="utf-8")
    return {key: _frozen(value) for key, value in tomllib.loads(text).items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value
