"""A hub on this machine: the addresses of the hub's API that downloads and uploads ask for, served from a folder."""

import base64
import hashlib
import json
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LICENCE = "flux-1-dev-non-commercial-license"


class HubServer(ThreadingHTTPServer):
    """Serves `root/owner/name/...` as repositories; remembers what was asked for, and the token that came with it.

    Every branch of a repository points at `commit_of(repo)`. Content of the owner `gated` is refused: 401 without a
    token, 403 with one.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[tuple[str, str]] = []
        self.tokens: dict[str, str | None] = {}
        self.bytes_sent: Counter[str] = Counter()
        """Of the content of each file, by its path in the repository."""
        self.breaks_off_after: dict[str, int] = {}
        """The connection ends after so many bytes of a file, which is refused from then on: 0 bytes."""
        self.damages: Counter[str] = Counter()
        """How many times more a file arrives with one byte changed."""
        self.uploads: dict[str, dict[str, bytes]] = {}
        """Files that were committed, by repository and path."""
        self.created: dict[str, bool] = {}
        """Repositories that were made here, and whether they are private."""
        self.large: dict[str, bytes] = {}
        """Content that arrived for large files, by its sha256."""

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

    def do_POST(self) -> None:
        path, body = self._asked()
        parts = path.strip("/").split("/")
        if self.headers.get("Authorization") is None or b'"readonly"' in body:
            self._send(403, b"{}", {"X-Error-Message": "You may not write here."})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            is_new = repo not in self.server.created
            self.server.created.setdefault(repo, asked.get("visibility") == "private")
            address = f"{self.server.endpoint}/{repo}"
            self._send(200 if is_new else 409, json.dumps({"url": address, "id": repo}).encode(), {})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._json({"transfer": "basic", "objects": [self._place_for(one) for one in json.loads(body)["objects"]]})
        elif parts[4:5] == ["preupload"]:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if _is_large(Path(name)) else "regular" for name in files}
            listed = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            self._json({"files": listed})
        else:
            assert parts[4] == "commit"
            self._commit("/".join(parts[2:4]), body)

    def do_PUT(self) -> None:
        """The content of a large file arrives."""
        path, body = self._asked()
        assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
        self.server.large[path.rpartition("/")[2]] = body
        self._send(200, b"", {})

    def _asked(self) -> tuple[str, bytes]:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        self.server.requests.append((self.command, path))
        self.server.tokens[path] = self.headers.get("Authorization")
        return path, self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _place_for(self, one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "actions": {"upload": {"href": f"{self.server.endpoint}/storage/{one['oid']}"}}}

    def _commit(self, repo: str, body: bytes) -> None:
        files = self.server.uploads.setdefault(repo, {})
        for line in body.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
        commit = {"commitUrl": f"{self.server.endpoint}/{repo}/commit/{commit_of(repo)}", "commitOid": commit_of(repo)}
        self._json({"success": True, **commit})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Says nothing on the terminal."""

    def _answer(self) -> None:
        path, _ = self._asked()
        api, _, rest = path.lstrip("/").partition("api/")
        parts = (rest or api).removeprefix("models/").split("/")
        num_parts = 3 if parts[0] == "datasets" else 2
        repo, what = "/".join(parts[:num_parts]), parts[num_parts:]
        folder = self.server.root / repo
        is_gated = repo.startswith("gated/")
        if repo in self.server.created:
            made = {"id": repo, "sha": commit_of(repo), "siblings": [], "private": self.server.created[repo]}
            self._json([] if what[:1] == ["tree"] else made)
        elif not folder.is_dir():
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif not rest and is_gated:
            status = 401 if self.headers.get("Authorization") is None else 403
            self._send(status, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted."})
        elif not rest:
            self._file(repo, folder, "/".join(what[2:]))
        elif what[:1] == ["tree"]:
            self._json([{"type": "file", **entry} for entry in _entries(folder)])
        else:
            siblings = [{"rfilename": entry["path"]} for entry in _entries(folder)]
            card = {"license": "other", "license_name": LICENCE}
            gated = "manual" if is_gated else False
            self._json({"id": repo, "sha": commit_of(repo), "siblings": siblings, "gated": gated, "cardData": card})

    def _file(self, repo: str, folder: Path, name: str) -> None:
        file = folder / name
        if not file.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit_of(repo)})
            return
        body = file.read_bytes()
        headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": commit_of(repo), "Accept-Ranges": "bytes"}
        if self.command == "GET" and self.server.damages[name] > 0:
            self.server.damages[name] -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        asked = self.headers.get("Range")
        if asked is None or self.command == "HEAD":
            self._content(200, name, body, headers)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self._content(206, name, body[start:], headers)

    def _content(self, status: int, name: str, body: bytes, headers: dict[str, str]) -> None:
        most = self.server.breaks_off_after.get(name)
        if self.command == "HEAD" or most is None:
            self.server.bytes_sent[name] += len(body) if self.command == "GET" else 0
            self._send(status, body, headers)
        elif most == 0:
            self._send(500, b"", {})
        else:
            self.server.breaks_off_after[name] = 0
            self.server.bytes_sent[name] += most
            self.close_connection = True
            self._send(status, body, headers, num_sent=most)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str], num_sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:num_sent])


def _etag(file: Path) -> str:
    """As the hub has it: the sha256 of weights, which are large files; git's hash of small ones."""
    content = file.read_bytes()
    if _is_large(file):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def _is_large(file: Path) -> bool:
    return file.suffix in (".safetensors", ".bin", ".png")


def _entries(folder: Path) -> list[dict[str, Any]]:
    entries = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size, tag = path.stat().st_size, _etag(path)
        entry: dict[str, Any] = {"path": path.relative_to(folder).as_posix(), "size": size, "oid": tag}
        if _is_large(path):
            pointer = hashlib.sha1(tag.encode(), usedforsecurity=False).hexdigest()
            entry |= {"oid": pointer, "lfs": {"oid": tag, "size": size, "pointerSize": 134}}
        entries.append(entry)
    return entries
