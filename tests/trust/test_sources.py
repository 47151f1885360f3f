"""Web sources as manifests and people write them."""

import pytest

from swarm.trust.sources import BadSource, WebSource, parse_source, read_source


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("https://x.org/a?b=1", "https://x.org/a?b=1"),
        ("first+http://127.0.0.1:80/{path}", "first+http://127.0.0.1:80/{path}"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
        ("hf:allenai/OLMoE-1B", "https://huggingface.co/allenai/OLMoE-1B/resolve/main"),
        ("first+hf:a/b@v1.0", "first+https://huggingface.co/a/b/resolve/v1.0"),
    ],
)
def test_what_a_person_types_is_kept_as_an_address(typed: str, kept: str) -> None:
    source = read_source(typed)
    assert str(source) == kept
    assert parse_source(kept) == source


def test_what_is_secret_in_an_address_is_not_shown() -> None:
    assert parse_source("first+https://me:word@x.org:81/a?sig=1").public == "https://x.org:81/a"


def test_whether_it_is_asked_first() -> None:
    assert parse_source("first+https://x") == WebSource("https://x", first=True)
    assert not parse_source("https://x").first


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "ftp://x", "first+", "first+first+https://x", "https://", "https:///path", "http://[::1", "http://a..b/",
        "https://" + "x" * 64, "https://x:99999/", "https://x:port/", "https://é", "https://x/a b", "https://x\n",
        "https://x/" + "a" * 2000, "hf:nobody", "hf:a/b@", "hf:a/b/c", "https://a%2fb/",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadSource, match="is no web source"):
        read_source(text)
