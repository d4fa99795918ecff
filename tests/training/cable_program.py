"""Runs beside two hosts (`.ci/two-hosts`): `python -m tests.training.cable_program EXPERIMENT RUNS NUM_CUTS`.

torchrun trains on both. Their cable is pulled out in the middle of the run and put back, so many times. Prints how
torchrun ended on each host, as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from foretune.record.events import read_events
from tests.waiting import HANG_S, waited_until

_ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}
_STEPS_BETWEEN_CUTS = 4
# The agents wait longer for each other than the cable is out: 5 s times this number.
_AGENTS_PATIENCE = 60


def begun(host: str, output: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """What it prints goes to a file: a pipe that nobody reads is full after some restarts, and the run hangs."""
    launcher = ("torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "100", "--rdzv-backend", "c10d")
    meeting = ("--rdzv-endpoint", "192.0.2.1:29500", "--rdzv-id", "cable", "--local-addr", _ADDRESSES[host])
    is_host = ("--rdzv-conf", f"is_host={int(host == 'a')},keep_alive_max_attempt={_AGENTS_PATIENCE}")
    with output.open("wb") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", host, *launcher, *meeting, *is_host, "-m", "foretune", *arguments],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "cable"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def starts_and_steps(runs: Path) -> tuple[int, int]:
    """How often the run was started, and the last step since then."""
    starts, last = 0, -1
    for log in runs.rglob("events.jsonl"):
        for event in read_events(log):
            if event["kind"] == "started":
                starts, last = starts + 1, -1
            elif event["kind"] == "step":
                last = event["step"]
    return starts, last


def wait_for_step(runs: Path, start: int, step: int, hosts: "list[subprocess.Popen[bytes]]") -> None:
    """Returns when the run has been started so often and has come to a step since."""

    def is_there() -> bool:
        for host in hosts:
            assert host.poll() is None, f"torchrun left with {host.poll()}"
        starts, last = starts_and_steps(runs)
        return starts == start and last >= step

    waited_until(is_there)


def wait_for_end(runs: Path, end: int) -> None:
    """Returns when the log says that the run has ended so often."""
    waited_until(
        lambda: end == sum(event["kind"] == "ended" for log in runs.rglob("events.jsonl") for event in read_events(log))
    )


def set_cable(state: str) -> None:
    subprocess.run(["ip", "-n", "a", "link", "set", "cable", state], check=True)


def ended(process: "subprocess.Popen[bytes]", output: Path) -> dict[str, Any]:
    return {"code": process.wait(timeout=HANG_S), "shown": output.read_text()}


def main() -> None:
    experiment, runs, num_cuts = sys.argv[1:]
    outputs = [Path(experiment).with_name(f"host-{host}.txt") for host in _ADDRESSES]
    hosts = [
        begun(host, output, "train", experiment, "--runs", runs)
        for host, output in zip(_ADDRESSES, outputs, strict=True)
    ]
    for cut in range(int(num_cuts)):
        wait_for_step(Path(runs), cut + 1, (cut + 1) * _STEPS_BETWEEN_CUTS, hosts)
        set_cable("down")
        # Back only when the loss was noticed: how long that takes depends on the machine.
        wait_for_end(Path(runs), cut + 1)
        set_cable("up")
    print(json.dumps([ended(host, output) for host, output in zip(hosts, outputs, strict=True)]))


if __name__ == "__main__":
    main()
