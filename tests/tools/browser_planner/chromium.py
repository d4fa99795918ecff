"""Drives Chromium through pipes with its DevTools protocol: pages, their workers, and every request they make."""

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import HANG_S

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """A tab. Requests of the page and of its workers are kept in `requests`, in their order."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._num_sent = 0
        self.requests: list[str] = []
        self.problems: list[str] = []
        """Exceptions of scripts and what the console calls an error."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._watch(self._session)
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def resize(self, width_px: int, height_px: int, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width_px, height=height_px, deviceScaleFactor=1,
                  mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            found = self.evaluate(script)
            if found:
                return found
            # The page is asked again soon; nothing depends on how soon.
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; {self.evaluate('document.body.innerText')}; {self.problems}")

    def screenshot(self, path: Path) -> None:
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(picture["data"]))

    def _watch(self, session: str) -> None:
        for domain in ("Network", "Runtime", "Log"):
            self._call(f"{domain}.enable", session)
        self._call("Target.setAutoAttach", session, autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        self._call("Runtime.runIfWaitingForDebugger", session)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, session, parameters)
        while True:
            message = self._next_message()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message}"
                answer: dict[str, Any] = message["result"]
                return answer
            self._heard(message)

    def _send(self, method: str, session: str | None, parameters: dict[str, Any]) -> int:
        self._num_sent += 1
        message = {"id": self._num_sent, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._num_sent

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 2**16)
            assert piece, "Chromium has ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _heard(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.problems.append(parameters["entry"]["text"])
            case "Target.attachedToTarget":
                # A worker waits until it is watched, so that none of its requests is missed.
                worker = parameters["sessionId"]
                for method in ("Network.enable", "Runtime.enable", "Runtime.runIfWaitingForDebugger"):
                    self._send(method, worker, {})


@contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A tab in a browser of its own."""
    read_commands, to_browser = os.pipe()
    from_browser, write_answers = os.pipe()

    def pipes() -> None:
        # Chromium reads commands from 3 and writes to 4.
        spare = os.dup(write_answers)
        os.dup2(read_commands, 3)
        os.dup2(spare, 4)

    process = subprocess.Popen(
        ["chromium", *_OPTIONS, f"--user-data-dir={profile}"],
        preexec_fn=pipes,  # noqa: PLW1509 - pipes with fixed numbers take it
        close_fds=False,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Page(to_browser, from_browser)
    finally:
        # Its own processes are in the session that was started for it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
