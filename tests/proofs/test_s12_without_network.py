"""S12: importing opens no socket, and every command works where the network is the loopback alone.

The kernel tells which addresses are connected to and bound, also by libraries in C++. Control: a program that connects
elsewhere is seen.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proofs.hostile_archives import zip_of
from tests.proofs.socket_calls import watched

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's"),
]

_IMPORT_ALL = """
import importlib, pkgutil, sys
opened = []
def hear(event, arguments):
    if event.startswith("socket."):
        opened.append((event, str(arguments)))
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
_EXPERIMENT = """
model: foretune-shapes
data: {kind: shapes, resolution: 32}
train: {steps: 3, batch_size: 2}
parallel: {device: cpu}
"""
_RUN = "runs/x/latest"
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list", "models"),
    ("schema",),
    ("plan", "flux.1-dev", "--on", "rtx-4090"),
    ("fetch", "flux.1-dev", "--dry-run"),
    ("init", "y.yaml"),
    ("data", "import", "a.zip", "--output", "pictures"),
    ("check", _RUN),
    ("report", _RUN),
    ("export", _RUN),
)


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


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, namespaces: None) -> Path:
    """A folder with an experiment, an archive and a run that was trained without a network."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "x.yaml").write_text(_EXPERIMENT)
    (folder / "a.zip").write_bytes(zip_of())
    trained = watched(["-m", "foretune", "train", "x.yaml"], folder, isolated=True)
    assert (trained.code, trained.remote, trained.public) == (0, frozenset(), frozenset()), trained.output[-1500:]
    return folder


@pytest.mark.takes_turns
@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command[0])
def test_s12_a_command_works_without_network(
    command: tuple[str, ...], workspace: Path, report_figure: Callable[[str], None]
) -> None:
    found = watched(["-m", "foretune", *command], workspace, isolated=True)
    report_figure(
        f"{' '.join(command)}: ended with {found.code} in a network without other machines, tried to reach "
        f"{len(found.remote)} of them, {len(found.public)} sockets could be reached by one"
    )
    assert found.code == 0, found.output[-1500:]
    assert not found.remote
    assert not found.public


def test_s12_control_a_program_that_reaches_out_is_seen(tmp_path: Path) -> None:
    code = "import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('192.0.2.1', 80)); s.close()"
    found = watched(["-c", code], tmp_path)
    assert found.remote == {"192.0.2.1"}
