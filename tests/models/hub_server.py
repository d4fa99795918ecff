"""A hub on this machine: the few addresses of the hub's API that a download asks for, served from a folder."""

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class HubServer(ThreadingHTTPServer):
    """Serves `root/owner/name/...` as repositories; remembers what was asked for, and the token that came with it.

    Every branch of a repository points at `commit_of(repo)`. Repositories of the owner `gated` need a token.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[tuple[str, str]] = []
        self.tokens: dict[str, str | None] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def files_asked_for(self, repo: str) -> set[str]:
        """The files of a repository whose content was sent."""
        prefix = f"/{repo}/resolve/{commit_of(repo)}/"
        return {path.removeprefix(prefix) for method, path in self.requests if method == "GET" and prefix in path}


def commit_of(repo: str) -> str:
    """The commit that every branch of a repository points at."""
    return hashlib.sha1(repo.encode(), usedforsecurity=False).hexdigest()


@contextmanager
def running_hub(root: Path) -> Iterator[HubServer]:
    """A hub for as long as the block lasts."""
    server = HubServer(root)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Says nothing on the terminal."""

    def _answer(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        self.server.requests.append((self.command, path))
        self.server.tokens[path] = self.headers.get("Authorization")
        api, _, rest = path.lstrip("/").partition("api/models/")
        parts = (rest or api).split("/")
        repo, what = "/".join(parts[:2]), parts[2:]
        folder = self.server.root / repo
        if not folder.is_dir():
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif repo.startswith("gated/"):
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted."})
        elif not rest:
            self._file(repo, folder / "/".join(what[2:]))
        elif what[:1] == ["tree"]:
            self._json([{"type": "file", **entry} for entry in _entries(folder)])
        else:
            siblings = [{"rfilename": entry["path"]} for entry in _entries(folder)]
            self._json({"id": repo, "sha": commit_of(repo), "siblings": siblings})

    def _file(self, repo: str, file: Path) -> None:
        if not file.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        body = file.read_bytes()
        tag = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        self._send(200, body, {"ETag": f'"{tag}"', "X-Repo-Commit": commit_of(repo)})

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _entries(folder: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        {
            "path": path.relative_to(folder).as_posix(),
            "size": path.stat().st_size,
            "oid": hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest(),
        }
        for path in files
    ]
