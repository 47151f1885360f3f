"""A web server of a model's files that knows Range."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Web(BaseHTTPRequestHandler):
    """A server of `files`; `trouble` may answer in its stead and says so."""

    protocol_version = "HTTP/1.1"
    trouble: "Callable[[Web], bool]" = staticmethod(lambda web: False)
    files: Mapping[str, bytes]
    seen: list[str]

    def do_GET(self) -> None:
        type(self).seen.append(self.path)
        if self.trouble(self):
            return
        path = unquote(urlsplit(self.path).path).removeprefix("/repo/")
        if path not in self.files:
            self.answer(404, b"no such file")
            return
        data = self.files[path]
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        self.answer(206, part, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"})

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # whoever asked has seen enough
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def web_server(files: Mapping[str, bytes]) -> Iterator[tuple[str, type[Web]]]:
    """Serves files in a thread: the address below which they are, and the handler, which `trouble` may be put in."""
    handler = type("Handler", (Web,), {"seen": [], "files": files})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/repo", handler
        finally:
            server.shutdown()
            thread.join()
