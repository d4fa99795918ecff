"""S8: whatever listens can be reached from this machine only.

Several processes of one training talk to one another, and trackers may have servers; the kernel tells which addresses
are bound. Nothing here serves pages, so there is no flag to make it public: the source is checked for servers.
Controls: a program that listens on every address is seen, a source with a server is refused.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foretune.core.extras import is_installed
from foretune.core.trackers import TRACKER_SPECS
from tests.conftest import ProofSize
from tests.proofs.socket_calls import watched

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's"),
]

_SOURCE = Path(__file__).parents[2] / "src"
_SERVERS = frozenset(
    {"http.server", "socketserver", "wsgiref", "xmlrpc.server", "aiohttp.web", "flask", "fastapi", "uvicorn"}
)
_LISTENS = frozenset({"listen", "create_server", "start_server", "start_unix_server", "serve_forever"})
_EXPERIMENT = (
    "model: ./tiny\ndata: {kind: shapes, resolution: 32}\ntrain: {steps: 3, batch_size: 2}\nparallel: {device: cpu}\n"
)


def servers_in(text: str) -> Iterator[str]:
    """Imports of servers and calls that begin to listen. aiohttp is a client, too; its server is aiohttp.web."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in _SERVERS)
        elif isinstance(node, ast.ImportFrom):
            names = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from sorted(names & _SERVERS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LISTENS:
            yield node.func.attr
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in _SERVERS:
            yield ast.unparse(node)


def test_s8_nothing_in_the_source_serves() -> None:
    found = {str(path): list(servers_in(path.read_text(encoding="utf-8"))) for path in _SOURCE.rglob("*.py")}
    assert {path: servers for path, servers in found.items() if servers} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import http.server",
        "from http import server",
        "from socketserver import TCPServer",
        "from aiohttp import web",
        "import aiohttp; app = aiohttp.web.Application()",
        "s.listen(1)",
    ],
)
def test_s8_control_a_server_in_the_source_is_seen(text: str) -> None:
    assert list(servers_in(text))


def test_s8_two_processes_and_trackers_listen_on_the_loopback_only(
    tmp_path: Path,
    tiny_pipeline: Callable[..., Path],
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    (tmp_path / "tiny").symlink_to(tiny_pipeline("flux"))
    (tmp_path / "x.yaml").write_text(_EXPERIMENT)
    trackers = ",".join(name for name, spec in TRACKER_SPECS.items() if spec.packages and is_installed(name))
    variants = [["parallel.devices=2"], [f"track=[{trackers}]"]][: proof_size(2, 1)]
    found = [watched(["-m", "foretune", "train", "x.yaml", *changes], tmp_path) for changes in variants]
    report_figure(
        f"{len(found)} trainings, of two processes and with the trackers {trackers}: bound to "
        f"{sorted(set().union(*(one.bound for one in found)))}, "
        f"reachable by others: {sorted(set().union(*(one.public for one in found)))}"
    )
    for one in found:
        assert one.code == 0, one.output[-2000:]
        assert not one.public
        assert not one.remote
    assert found[0].bound, "two processes listen for one another"


def test_s8_control_a_program_that_listens_to_all_is_seen(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):  # noqa: S104 - what must be seen
        family = "AF_INET6" if ":" in host else "AF_INET"
        code = f"import socket; s = socket.socket(socket.{family}); s.bind(({host!r}, 0)); s.listen()"
        assert watched(["-c", code], tmp_path).public == {host}
