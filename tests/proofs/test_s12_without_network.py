"""S12: importing opens no socket, and every command works where the network is the loopback alone.

The kernel tells which addresses are connected to and bound, also by libraries in C++. Control: a program that connects
elsewhere is seen.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ProofSize
from tests.proofs.hostile_archives import zip_of
from tests.proofs.rotation import turn
from tests.proofs.socket_calls import SocketCalls, watched

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's"),
]

_IMPORT_ALL = """
import importlib, pkgutil, sys
opened = []
hear = lambda event, arguments: opened.append((event, str(arguments))) if event.startswith("socket.") else None
sys.addaudithook(hear)
import foretune
first = list(opened)
names = [module.name for module in pkgutil.walk_packages(foretune.__path__, "foretune.")]
failed = []
for name in names:
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name}: {error!r}")
ours = len(first)
bound = [one for one in opened if one[0] == "socket.bind" and "('::1', 0)" in one[1]]
others = [one for one in opened if one not in bound and one[0] != "socket.__new__"]
print(len(names), ours, len(bound), failed, others)
"""
_EXPERIMENT = (
    "model: ./tiny\ndata: {kind: shapes, resolution: 32}\ntrain: {steps: 3, batch_size: 2}\nparallel: {device: cpu}\n"
)
_RUN = "runs/x/latest"
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list", "models"),
    ("schema",),
    ("plan", "flux.1-dev", "--on", "rtx-4090"),
    ("fetch", "flux.1-dev", "--dry-run"),
    ("init", "y.yaml"),
    ("data", "import", "a.zip", "--output", "pictures"),
    ("doctor",),
    ("train", "x.yaml"),
    ("check", _RUN),
    ("report", _RUN),
    ("compare", _RUN, _RUN),
    ("export", _RUN),
    ("sample", _RUN, "a square"),
    ("bench", "x.yaml", "--repeat", "1"),
    ("profile", "x.yaml"),
)
_NEEDED = frozenset({"train"})
"""Commands that others need the result of."""


def test_s12_importing_opens_no_connection(report_figure: Callable[[str], None]) -> None:
    """urllib3, which libraries import, binds a socket to ::1 and closes it to see whether there is IPv6."""
    answer = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, check=True)
    num_modules, ours, bound, rest = answer.stdout.strip().splitlines()[-1].split(" ", 3)
    report_figure(
        f"import foretune: {ours} uses of sockets; {num_modules} modules imported: 0 connections, 0 names looked up, "
        f"{bound} sockets bound to the loopback by urllib3 and closed"
    )
    assert rest == "[] []"
    assert ours == "0"
    assert int(num_modules) > 300


@pytest.fixture
def workspace(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> Path:
    (tmp_path / "tiny").symlink_to(tiny_pipeline("flux"))
    (tmp_path / "x.yaml").write_text(_EXPERIMENT)
    (tmp_path / "a.zip").write_bytes(zip_of())
    return tmp_path


def test_s12_every_command_works_without_network(
    workspace: Path, namespaces: None, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    every = proof_size(1, 7)
    chosen = [
        command for place, command in enumerate(_COMMANDS) if (place + turn()) % every == 0 or command[0] in _NEEDED
    ]
    found: dict[str, SocketCalls] = {}
    for command in chosen:
        found[" ".join(command)] = watched(["-m", "foretune", *command], workspace, isolated=True)
    report_figure(
        f"{len(found)} commands in a network without other machines: {sum(not one.code for one in found.values())} "
        f"succeeded, {sum(bool(one.remote) for one in found.values())} tried to reach another machine, "
        f"{sum(bool(one.public) for one in found.values())} could be reached by one"
    )
    assert {name: one.output[-1500:] for name, one in found.items() if one.code} == {}
    assert {name: one.remote for name, one in found.items() if one.remote} == {}
    assert {name: one.public for name, one in found.items() if one.public} == {}


def test_s12_control_a_program_that_reaches_out_is_seen(tmp_path: Path) -> None:
    code = "import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('192.0.2.1', 80)); s.close()"
    found = watched(["-c", code], tmp_path)
    assert found.remote == {"192.0.2.1"}
