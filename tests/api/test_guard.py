"""Who may ask and how much: keys, hosts, sites, limits; and what hundreds of bad requests leave behind."""

import gc
import json
import os
import random
import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from swarm.api.app import Rules
from swarm.api.replies import Replies
from swarm.api.server import Settings
from tests.api.stage import Scripts, ask, idle, in_process, says, until

REQUESTS = int(os.environ.get("SWARM_TEST_REQUESTS", "300"))
KEY = "correct horse battery"


def library(oracle: Path, pace_s: float = 0.0) -> Scripts:
    return Scripts(oracle / "qwen3_moe", {"only": lambda asked: "word " * 40}, pace_s)


@pytest.fixture(scope="module")
def guarded(oracle: Path) -> Iterator[str]:
    rules = Rules(key=KEY, origins=("https://good.example",), body_bytes=5000, body_within_s=0.3)
    with in_process(library(oracle), Settings(rules=rules)) as url:
        yield url


def raw(url: str, data: bytes) -> bytes:
    """What a server answers to some bytes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(data)
        received = b""
        while b"\r\n\r\n" not in received and (more := link.recv(65536)):
            received += more
    return received


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer ü"])
def test_the_key_is_needed(guarded: str, key: str) -> None:
    for path in ("/v1/models", "/metrics", "/v1/swarm"):
        answer = httpx2.get(guarded + path, headers={"authorization": key.encode("latin-1")})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_with_the_key(guarded: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx2.get(guarded + "/v1/models", headers=headers).json()["data"][0]["id"] == "only"
    assert ask(guarded, says("x", max_tokens=2), headers=headers).status_code == 200
    counted = httpx2.get(guarded + "/metrics", headers=headers).content
    assert b"swarm_reply_tokens_total" in counted
    assert b"swarm_expert_misses " in counted
    assert httpx2.get(guarded + "/health").json()["status"] == "ok"


def test_the_page_is_safe_in_a_browser(guarded: str) -> None:
    page = httpx2.get(guarded)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert httpx2.head(guarded).content == b""


def test_other_sites_are_refused_unless_named(guarded: str) -> None:
    def allowed(origin: str) -> str | None:
        asked = {"origin": origin, "access-control-request-method": "POST"}
        answer = httpx2.options(guarded + "/v1/chat/completions", headers=asked)
        return answer.headers.get("access-control-allow-origin")

    assert allowed("https://good.example") == "https://good.example"
    assert allowed("https://evil.example") is None


def test_the_headers_that_a_client_sends_of_its_own_are_allowed(guarded: str) -> None:
    own = "authorization,content-type,x-stainless-lang,x-stainless-os"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": own}
    for origin, allowed in (("https://good.example", own), ("https://evil.example", None)):
        answer = httpx2.options(guarded + "/v1/chat/completions", headers={"origin": origin, **asked})
        assert answer.headers.get("access-control-allow-headers") == allowed


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:1", "localhost.", "127.0.0.2:80", "[::1]", "[::1]:80")),
        *((host, 403) for host in ("[", "[::1", "", "a@localhost", "localhost.evil.example", "10.0.0.1", "::", "a:b")),
    ],
)  # fmt: skip
def test_names_of_this_machine(guarded: str, host: str, status: int) -> None:
    assert httpx2.get(guarded + "/health", headers={"host": host}).status_code == status


def test_a_page_elsewhere_cannot_pose_as_this_machine(guarded: str) -> None:
    assert httpx2.get(guarded, headers={"host": "evil.example"}).status_code == 403
    plain = {"content-type": "text/plain", "authorization": f"Bearer {KEY}"}
    assert httpx2.post(guarded + "/v1/completions", content=b"{}", headers=plain).status_code == 415


def test_limits_of_body_and_head(guarded: str) -> None:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    assert ask(guarded, says("x" * 5000), headers=headers).status_code == 413

    def parts() -> Iterator[bytes]:
        yield from [b" " * 1000] * 7

    assert httpx2.post(guarded + "/v1/completions", content=parts(), headers=headers).status_code == 413
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        "Content-Type: application/json\r\n"
    )
    assert b" 408 " in raw(guarded, f"{head}Content-Length: 10\r\n\r\n{{".encode())
    assert b" 413 " in raw(guarded, f"{head}Content-Length: 99999999999999999999\r\n\r\n".encode())
    assert raw(guarded, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000)[:12] in (
        b"HTTP/1.1 400",
        b"HTTP/1.1 431",
    )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/", 405),
        ("GET", "/../../x", 404),
    ],
)
def test_wrong_paths_and_methods(guarded: str, method: str, path: str, status: int) -> None:
    answer = httpx2.request(method, guarded + path, headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    allowed = {"/v1/completions": "POST", "/": "HEAD, GET"}.get(path) if status == 405 else None
    assert answer.headers.get("allow") == allowed


def test_a_full_queue_is_said_so(oracle: Path) -> None:
    with (
        in_process(library(oracle, 0.01), Settings(slots=1, most_waiting=1)) as url,
        ThreadPoolExecutor(6) as pool,
    ):
        ask(url, says("x", max_tokens=1))
        answers = list(pool.map(lambda _: ask(url, says("x")), range(6)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 1 <= len(refused) < 6
        assert {answer.status_code for answer in answers} == {200, 429}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert refused[0].json()["error"]["type"] == "rate_limit_error"


def resident_bytes() -> int:
    """Memory of this process, which is the server and its clients; 0 where Linux does not tell."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() if pages.exists() else 0


def under_way() -> int:
    """Replies that are still held by anything."""
    gc.collect()
    return sum(isinstance(thing, Replies) for thing in gc.get_objects())


def test_hundreds_of_bad_requests_leave_nothing_behind(
    oracle: Path, record_property: Callable[[str, object], None]
) -> None:
    luck = random.Random(7)
    good = json.dumps(says("x", max_tokens=30, stream=True)).encode()

    def one(seed: int) -> int:
        chosen = random.Random(seed)
        body = good
        match chosen.randrange(5):
            case 0:  # malformed
                at = chosen.randrange(len(good))
                body = good[:at] + bytes([chosen.randrange(256)]) + good[at + 1 :]
            case 1:  # cut short, with a length that agrees
                body = good[: chosen.randrange(len(good))]
            case 2:  # oversize
                body = good + b" " * 20_000
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as link:
            if chosen.random() < 0.3:  # gone before all is sent
                link.sendall(whole[: chosen.randrange(len(whole))])
                return 0
            link.sendall(whole)
            if chosen.random() < 0.3:  # gone before anything is read
                return 0
            status = int(link.recv(13).split(b" ")[1][:3])
            if chosen.random() < 0.5:  # gone amid the answer
                link.recv(chosen.randrange(1, 2000))
                return status
            received = b""
            while body == good and b"[DONE]" not in received:
                received += (more := link.recv(65536))
                assert more
            return status

    rules = Rules(body_bytes=10_000)
    with in_process(library(oracle), Settings(slots=4, most_waiting=1000, rules=rules)) as url:
        ask(url, says("x", max_tokens=1))
        seeds = [luck.randrange(1 << 30) for _ in range(REQUESTS)]
        with ThreadPoolExecutor(12) as pool:
            statuses = list(pool.map(one, seeds[: REQUESTS // 3]))
            until(lambda: idle(url))
            warm_bytes = resident_bytes()
            statuses += pool.map(one, seeds[REQUESTS // 3 :])
        assert set(statuses) <= {0, 200, 400, 404, 413}
        assert statuses.count(200) > REQUESTS // 10
        until(lambda: idle(url) and not under_way())
        grown_bytes = resident_bytes() - warm_bytes
        record_property("grown_bytes", grown_bytes)
        print(f"{REQUESTS} requests; {grown_bytes / 1e6:.1f} MB more since {REQUESTS // 3} of them")
        assert grown_bytes < 48 << 20
        counted = httpx2.get(url + "/metrics").text
        assert 'status="500"' not in counted
        whole = ask(url, says("x")).json()
        assert whole["choices"][0]["message"]["content"] == "word " * 40
