"""Real servers on loopback: moto's S3, and an HTTP server that fails on request."""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

from tests.waiting import HANG_S

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anyone",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yields the environment in which `s3://bucket/...` leads to a server of this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        variables = {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "no_proxy": "127.0.0.1"}
        with mock.patch.dict(os.environ, variables):
            make_bucket()
            yield variables
    finally:
        server.stop()


def make_bucket() -> None:
    import boto3

    boto3.client("s3").create_bucket(Bucket=BUCKET)


class FailingServer:
    """Serves a folder over HTTP with ranges; `faults` says how the next requests for a name end.

    "404", "500": the status; "short": the connection ends early; "garbage": other bytes of the right length; "stall":
    silence until the server is closed. What is not listed, or "", is served.
    """

    def __init__(self, folder: Path) -> None:
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.requests: list[tuple[str, str]] = []
        """Name and range of each request for content."""
        self.closing = threading.Event()
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                own._get(self, folder, is_head=False)

            def do_HEAD(self) -> None:
                own._get(self, folder, is_head=True)

            def log_message(self, *arguments: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def _get(self, request: BaseHTTPRequestHandler, folder: Path, *, is_head: bool) -> None:
        name = request.path.rpartition("/")[2]
        path = folder / name
        asked = request.headers.get("Range", "")
        fault = ""
        if not is_head:
            self.requests.append((name, asked))
            waiting = self.faults[name]
            fault = waiting.pop(0) if waiting else ""
        if fault == "stall":
            self.closing.wait(HANG_S)
            request.close_connection = True
            return
        if fault in ("404", "500") or not path.is_file():
            request.send_error(int(fault or 404))
            return
        data = path.read_bytes()
        status = 200
        if asked:
            start, end = (int(part) for part in asked.removeprefix("bytes=").split("-"))
            request_data, status = data[start : end + 1], 206
        else:
            start, request_data = 0, data
        if fault == "garbage":
            request_data = bytes(byte ^ 0xFF for byte in request_data)
        request.send_response(status)
        request.send_header("Content-Length", str(len(request_data)))
        request.send_header("Accept-Ranges", "bytes")
        if status == 206:
            request.send_header("Content-Range", f"bytes {start}-{start + len(request_data) - 1}/{len(data)}")
        request.end_headers()
        if not is_head:
            request.wfile.write(request_data[: len(request_data) // 2] if fault == "short" else request_data)
        request.close_connection = fault == "short"

    def __enter__(self) -> "FailingServer":
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


def waits() -> tuple[list[float], Callable[[float], None]]:
    """A clock that only notes how long it was waited."""
    noted: list[float] = []
    return noted, noted.append
