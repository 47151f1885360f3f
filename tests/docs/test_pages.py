"""What the pages point to exists: links, files, tests; and the table of families is that of the code."""

import re
from pathlib import Path

import pytest

from engine.models import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|contrib|docs|engine|swarm|tracker|mirror|tui)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_table_of_families_is_that_of_the_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## Families", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"`(\w+)`", table.split("|---|---|", 1)[1])) == set(FAMILIES)
