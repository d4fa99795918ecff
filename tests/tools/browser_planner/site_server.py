"""Serves a built site on loopback, and keeps back what a test wants to come late."""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.waiting import HANG_S


class SiteServer(ThreadingHTTPServer):
    """As most hosts: it compresses nothing, and knows the types of modules."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.asked: list[str] = []
        self.sent_bytes: dict[str, int] = {}
        self.may_send_assets = threading.Event()
        """Until it is set, nothing of the planner is sent."""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(SimpleHTTPRequestHandler):
    server: SiteServer
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012 - as there

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if "/assets/" in self.path:
            self.server.may_send_assets.wait(HANG_S)
        file = Path(self.translate_path(self.path))
        if file.is_file():
            self.server.sent_bytes[self.path] = file.stat().st_size
        super().do_GET()

    def log_message(self, *words: Any) -> None:
        """Prints nothing."""


@contextmanager
def served_site(folder: Path) -> Iterator[SiteServer]:
    server = SiteServer(folder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.may_send_assets.set()
        server.shutdown()
        thread.join()
        server.server_close()
