"""Headless Chromium for tests of the page, over its DevTools pipe: messages are JSON, each ended by a NUL."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import missing

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
PATIENCE_S = 30.0


class Browser:
    """One page."""

    def __init__(self, to: int, back: int) -> None:
        self._to = to
        self._back = os.fdopen(back, "rb", buffering=0)
        self._held = b""
        self._ids = 0
        self._session: str | None = None
        self.problems: list[str] = []
        """What the page's console and its policies complained of."""

    def open(self, url: str) -> None:
        """Goes to a page and waits until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._ids += 1
        message: dict[str, Any] = {"id": self._ids, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._ids:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        made = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until an expression in the page is true."""
        begun = time.monotonic()
        while not self.run(f"!!({script})"):
            assert time.monotonic() - begun < PATIENCE_S, (
                script,
                self.problems,
                self.run("document.body.innerText"),
            )
            time.sleep(0.03)

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Presses a key."""
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": text} if kind == "keyDown" and text else {}),
            )

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            data = self._back.read(1 << 16)
            assert data, "the browser has ended"
            self._held += data
        message, self._held = self._held.split(b"\0", 1)
        value: dict[str, Any] = json.loads(message)
        return value

    def _note(self, told: dict[str, Any]) -> None:
        match told.get("method"):
            case "Log.entryAdded":
                self.problems.append(told["params"]["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(told["params"]["exceptionDetails"]))

    def close(self) -> None:
        """Closes the pipe."""
        self._back.close()


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile, for the length of a block."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        missing("no Chromium is installed")
        raise AssertionError
    read, to = os.pipe()
    back, write = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    process = subprocess.Popen(
        [
            *(
                "/bin/bash",
                "-c",
                f'exec "$@" 3<&{read} 4>&{write} {read}<&- {write}>&-',
                "sh",
                program,
                *options,
            ),
            *("--disable-background-networking", "--disable-extensions", "--remote-debugging-pipe"),
            f"--user-data-dir={folder}",
        ],
        pass_fds=(read, write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(read)
    os.close(write)
    browser = Browser(to, back)
    try:
        yield browser
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        browser.close()
        os.close(to)
