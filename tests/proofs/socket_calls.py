"""Which addresses a command and the processes it starts listen on and connect to, as the kernel sees it (strace)."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import lacking

_ADDRESS = re.compile(
    r'(?P<call>bind|connect)\(\d+, \{sa_family=(?P<family>AF_\w+)(?:.*?(?:inet_addr\("(?P<four>[^"]*)"\)'
    r'|inet_pton\(AF_INET6, "(?P<six>[^"]*)"))?'
)
_LOOPBACK = re.compile(r"^(127\.|::1$|::ffff:127\.)")
_INTERNET = ("AF_INET", "AF_INET6")


@dataclass(frozen=True)
class SocketCalls:
    """What a command did with sockets of the internet families; others do not leave the machine."""

    code: int
    output: str
    bound: frozenset[str]
    """Addresses that sockets were bound to."""
    connected: frozenset[str]
    """Addresses that were connected to, or that datagrams were aimed at."""

    @property
    def public(self) -> frozenset[str]:
        """Bound addresses that other machines can reach."""
        return frozenset(address for address in self.bound if not _LOOPBACK.match(address))

    @property
    def remote(self) -> frozenset[str]:
        """Addresses on other machines."""
        return frozenset(address for address in self.connected if not _LOOPBACK.match(address))


def watched(arguments: Sequence[str], folder: Path, *, isolated: bool = False) -> SocketCalls:
    """Runs a Python command and returns what it did. Isolated: in a network that consists of the loopback."""
    if shutil.which("strace") is None:
        lacking("strace: apt-get install strace")
    log = folder / "calls.log"
    log.unlink(missing_ok=True)
    command = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=bind,connect", "-o", str(log), sys.executable]
    script = 'ip link set lo up && exec "$@"'
    before = ["unshare", "--net", "sh", "-c", script, "sh"] if isolated else []
    ended = subprocess.run(
        [*before, *command, *arguments],
        cwd=folder,
        env={**os.environ, "FORETUNE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    calls = [found for line in log.read_text().splitlines() if (found := _ADDRESS.search(line))]
    by_call = {
        call: frozenset(
            found["four"] or found["six"] or "unknown"
            for found in calls
            if found["call"] == call and found["family"] in _INTERNET
        )
        for call in ("bind", "connect")
    }
    return SocketCalls(ended.returncode, ended.stdout + ended.stderr, by_call["bind"], by_call["connect"])
