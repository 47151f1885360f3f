"""Over TLS, with a certificate of the test's own: the official client, streams, and who does not trust it."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest
import trustme

from tests.api.stage import api_process
from tests.e2e.processes import swarm


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("127.0.0.1", "localhost")
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return chain, key


@pytest.fixture(scope="module")
def url(files: tuple[Path, Path], oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    chain, key = files
    home = tmp_path_factory.mktemp("home")
    arguments = ("--local", oracle / "qwen3_moe", "--tls-cert", chain, "--tls-key", key)
    with api_process(home, *arguments, "--api-key", "a long key") as it:
        yield it


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("http2", [False, True])
def test_the_official_client(url: str, authority: trustme.CA, http2: bool) -> None:
    assert url.startswith("https://")
    with (
        httpx2.Client(verify=trusting(authority), http2=http2) as link,
        openai.OpenAI(
            base_url=f"{url}/v1", api_key="a long key", http_client=link, max_retries=0, timeout=60
        ) as client,
    ):
        asked = {"model": "qwen3_moe", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        whole = client.chat.completions.create(**asked, temperature=0)  # type: ignore[call-overload]
        stream = client.chat.completions.create(**asked, temperature=0, stream=True)  # type: ignore[call-overload]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert said == whole.choices[0].message.content != ""


def test_who_does_not_trust_it_gets_nothing(url: str) -> None:
    with pytest.raises(httpx2.ConnectError, match="certificate"):
        httpx2.get(f"{url}/health", timeout=20)


def test_plain_http_and_old_tls_are_turned_away(url: str, authority: trustme.CA) -> None:
    host, port = url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in link.recv(1000)
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("AES128-SHA")  # without forward secrecy
    with (
        socket.create_connection((host, int(port)), timeout=20) as link,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(link, server_hostname="127.0.0.1")
    assert httpx2.get(f"{url}/health", verify=trusting(authority), timeout=20).status_code == 200


def test_files_that_are_no_certificate_are_named(
    files: tuple[Path, Path], oracle: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    chain, key = files
    for pair in ((wrong, key), (chain, wrong)):
        done = swarm(
            tmp_path / "home", "api", "--local", oracle / "qwen3_moe", "--port", "0",
            "--tls-cert", pair[0], "--tls-key", pair[1],
        )  # fmt: skip
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert str(wrong) in done.stderr
