"""The page in a real browser: it asks, streams, stops, switches models, and shows markup as text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.browser import Browser, browsing
from tests.api.stage import Scripts, idle, in_process, until

SCRIPT = (
    "<think>Hm.</think>**Bold** and `code` <script>document.title = 'taken'</script>"
    "<img src=x onerror=\"document.title='taken'\">\n\n- one\n- [two](javascript:alert(1))\n\n```\na < b\n```\n"
)
STATE = {
    "link": "online",
    "address": "192.0.2.7:7300",
    "fetched_bytes": 2_000_000,
    "calls": 10,
    "remote_calls": 7,
    "peers": [{"name": "<b>ab</b>", "role": "experts", "bytes": 5000, "calls": 7, "state": "ok"}],
    "experts": [[0, 1, 2, 1], [1, 1, 0, 3]],
}


def answer(asked: str) -> str:
    return {"script": SCRIPT, "long": "word " * 900}.get(asked, f"You said {asked}.")


@pytest.fixture(scope="module")
def library(oracle: Path) -> Scripts:
    other = {"other": lambda asked: "Another model."}
    return Scripts(oracle / "qwen3_moe", {"first": answer, **other}, 0.002, STATE)


@pytest.fixture(scope="module")
def url(library: Scripts) -> Iterator[str]:
    with in_process(library) as it:
        yield it


@pytest.fixture(scope="module")
def page(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(url)
        browser.until("document.getElementById('model').options.length === 2")
        yield browser


def say(page: Browser, text: str) -> None:
    page.run("document.getElementById('words').focus()")
    page.type(text)
    page.press("Enter", 13)


def answered(page: Browser) -> str:
    page.until(
        "document.getElementById('stop').disabled && document.querySelector('.assistant:last-child div')"
    )
    return str(page.run("document.querySelector('.assistant:last-child div').innerText"))


def test_it_asks_and_answers_by_keyboard(page: Browser) -> None:
    assert page.run("document.activeElement.id") == "words"
    say(page, "hello")
    page.until("document.querySelector('.assistant')")
    assert answered(page) == "You said hello."
    assert page.run("document.activeElement.id") == "words"
    assert "tokens" in page.run("document.getElementById('speed').textContent")


def test_markup_of_a_model_is_text(page: Browser) -> None:
    say(page, "script")
    page.until("document.querySelectorAll('.assistant').length === 2")
    text = answered(page)
    assert "<script>document.title = 'taken'</script><img src=x" in text
    assert page.run("document.title") == "Swarm"
    assert page.run("document.querySelectorAll('#talk script, #talk img, #talk [onerror]').length") == 0
    assert page.run("[...document.querySelectorAll('#talk a')].map(a => a.href)") == []
    assert page.run("document.querySelector('.assistant:last-child strong').textContent") == "Bold"
    assert page.run("document.querySelector('.assistant:last-child pre').textContent") == "a < b"
    assert page.run("document.querySelector('.assistant:last-child .thought').textContent") == "Hm."


def test_it_streams_and_stops(page: Browser, url: str) -> None:
    say(page, "long")
    page.until("document.querySelector('.assistant:last-child div')?.innerText.startsWith('word word')")
    assert not page.run("document.getElementById('stop').disabled")
    page.press("Escape", 27)
    assert 5 < len(answered(page)) < 4000
    assert page.run("document.getElementById('speed').textContent").endswith("stopped")
    until(lambda: idle(url))


def test_it_switches_models(page: Browser, library: Scripts) -> None:
    assert library.opened == ["first"]
    page.run("document.getElementById('model').value = 'other'")
    say(page, "who?")
    page.until("document.querySelectorAll('.assistant').length === 4")
    assert answered(page) == "Another model."
    assert library.opened == ["first", "other"]
    page.run("document.getElementById('fresh').click()")
    assert page.run("document.querySelectorAll('.turn').length") == 0


def test_it_shows_the_swarm(page: Browser) -> None:
    page.run("document.getElementById('network').click()")
    page.until("document.querySelectorAll('#peers tr').length === 1")
    assert page.run("document.querySelector('#peers td').textContent") == "<b>ab</b>"
    assert page.run("document.getElementById('experts-told').textContent").startswith("6 of 8 experts")
    assert "7 of 10 expert calls" in page.run("document.getElementById('link').textContent")


def test_it_needs_nothing_from_elsewhere_and_complains_of_nothing(page: Browser, url: str) -> None:
    sources = page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(source.startswith(url) for source in sources)
    assert page.run("[...document.querySelectorAll('button, select, textarea, input')].every(e => "
                    "e.hidden || e.textContent.trim() || e.labels.length)")  # fmt: skip
    assert page.problems == []


def test_the_policy_of_the_page_is_kept(page: Browser) -> None:
    written = "(() => { try { document.body.insertAdjacentHTML('beforeend', '<i>x</i>'); return 'written'; }"
    assert page.run(f"{written} catch (error) {{ return error.name; }} }})()") == "TypeError"
    elsewhere = "fetch('http://192.0.2.1/').then(() => 'fetched', error => error.name)"
    assert page.run(elsewhere) == "TypeError"
    assert any("192.0.2.1" in problem for problem in page.problems)
