"""A Ray cluster of two nodes on this machine, of which one is killed.

`python -m tests.executors.ray_program FOLDER NUM`
Runs NUM tasks, half of them with faults, and three that run on both nodes when the second is killed. Prints what became
of them, as JSON. It is started in namespaces of its own, where nothing but loopback exists.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from foretune.executors.executor import Executor, open_executor
from foretune.executors.task import Resources, Task
from foretune.executors.task_files import read_answer, read_attempts, read_outcome
from tests.executors.cluster_tasks import times_performed, toy_task
from tests.proofs.test_r16_faults import FAULTS, faulty_task
from tests.waiting import HANG_S, waited_until

PORT = 6379
PATIENT = {
    "RAY_agent_register_timeout_ms": "900000",
    "RAY_gcs_server_request_timeout_seconds": "900",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "900",
}
"""A process of a node that is killed is missed at once, because its connection is closed; a slow one has time."""
_NUM_LONG = 3


def started(folder: Path, *arguments: str, num_cpus: int = 2) -> "subprocess.Popen[bytes]":
    """A node that has joined its cluster."""
    log = folder / f"ray-start-{len(list(folder.glob('ray-start-*')))}.txt"
    options = ("--block", f"--num-cpus={num_cpus}", "--object-store-memory=80000000", *arguments)
    with log.open("wb") as output:
        node = subprocess.Popen(
            [sys.executable, "-m", "tests.executors.ray_node", "start", *options],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    waited_until(lambda: b"Ray runtime started" in log.read_bytes() or node.poll() is not None)
    assert node.poll() is None, log.read_text()
    return node


def kill_node(node: "subprocess.Popen[bytes]") -> list[int]:
    """As where a machine loses its power: everything of the node at once. Returns what was killed."""
    processes = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
    node.wait()
    return [process.pid for process in processes]


def finish(executor: Executor, names: set[str]) -> None:
    while names:
        ended = executor.ended(HANG_S)
        assert ended, f"{names} do not end"
        names -= set(ended)


def place_on_gpus(executor: Executor, folder: Path) -> dict[str, Any]:
    """What a task sees that takes both GPUs of a node, and what is said of one that no node can hold."""
    both = toy_task(folder, "environment", "both", resources=Resources(num_devices=2))
    three = toy_task(folder, "square", "three", resources=Resources(num_devices=3))
    for task in (both, three):
        executor.submit(task)
    finish(executor, {both.name})
    executor.stop(three.name)
    finish(executor, {three.name})
    outcome = read_outcome(three.folder)
    return {
        "visible": read_answer(both.folder)["variables"]["CUDA_VISIBLE_DEVICES"],
        "notes": executor.notes,
        "three": None if outcome is None else outcome.kind,
    }


def main() -> None:
    folder, num, start_s = Path(sys.argv[1]), int(sys.argv[2]), time.monotonic()
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    os.environ |= PATIENT | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    # Ray hands out as many GPUs as it is started with.
    started(folder, "--head", f"--port={PORT}", "--include-dashboard=false", "--num-gpus=2")
    second = started(folder, f"--address=127.0.0.1:{PORT}")
    executor = open_executor("ray", {"address": f"127.0.0.1:{PORT}", "grace_s": 1.0})
    print(f"the cluster is up after {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)

    long = [toy_task(folder, "wait_for", f"long-{number}", go=str(folder / "go")) for number in range(_NUM_LONG)]
    for task in long:
        executor.submit(task)
    waited_until(lambda: all(Path(task.request["began"]).exists() for task in long) or bool(executor.ended(0.0)))
    killed = kill_node(second)
    on_second = [task.name for task in long if read_attempts(task.folder)[0].pid in killed]
    (folder / "go").touch()
    finish(executor, {task.name for task in long})
    print(f"the lost node is made up for after {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)

    expected = {task.name: ("done", 1 + (task.name in on_second)) for task in long}
    tasks: list[Task] = []
    for number in range(num // 2):
        fault = list(FAULTS)[number % len(FAULTS)]
        tasks += [faulty_task(folder, fault, number), toy_task(folder, "square", f"square-{number}", number=number)]
        expected |= {tasks[-2].name: (FAULTS[fault], 1), tasks[-1].name: ("done", 1)}
    for task in tasks:
        executor.submit(task)
    finish(executor, {task.name for task in tasks})
    gpus = place_on_gpus(executor, folder)
    executor.close()
    print(f"all is over after {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)

    times = times_performed(folder)
    outcomes = {name: read_outcome(folder / "tasks" / name) for name in expected}
    found = {name: (None if one is None else one.kind, times.get(name, 0)) for name, one in outcomes.items()}
    print(json.dumps({"expected": expected, "found": found, "lost_with_the_node": on_second, "gpus": gpus}))


if __name__ == "__main__":
    main()
