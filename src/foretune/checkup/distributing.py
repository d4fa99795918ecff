"""Collectives between processes: gloo between two on this host, NCCL between all CUDA devices.

`python -m foretune.checkup.distributing RANK WORLD BACKEND FILE` is one of the processes; it prints a line of JSON
for each collective.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from foretune.checkup.finding import CheckResult
from foretune.core.thread_waiting import with_passive_waiting

_LIMIT_S = 300.0
_ANSWER_WITHIN_S = 240
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
_NUM_GLOO = 2


def examine_collectives() -> Iterator[CheckResult]:
    """Every collective that data-parallel and sharded training use, by every backend that is here."""
    if not torch.distributed.is_available():
        yield _finding(
            "gloo", "all_reduce", works=False, seconds=0.0, detail="this torch was built without distributed"
        )
        return
    yield from _together("gloo", _NUM_GLOO)
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        yield from _together("nccl", torch.cuda.device_count())


def _together(backend: str, world: int) -> Iterator[CheckResult]:
    """Processes of their own: a backend that hangs must not hang the doctor."""
    # On the loopback alone: 127.0.0.1 is there whatever the network is like.
    loopback = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    environment = with_passive_waiting({**os.environ, **loopback})
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "foretune.checkup.distributing", str(rank), str(world), backend, meeting],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(world)
        ]
        answers = [_answer(process) for process in processes]
    results: dict[str, Any] = {}
    for line in answers[0][0].splitlines():
        results |= json.loads(line) if line.startswith("{") else {}
    rest_s = time.perf_counter() - began_s
    for name in COLLECTIVES:
        if name in results:
            yield _finding(
                backend,
                name,
                results[name]["works"],
                results[name]["seconds"],
                f"{world} processes: {results[name]['detail']}",
            )
        else:
            words = answers[0][1].strip().splitlines() or ["no answer"]
            yield _finding(backend, name, works=False, seconds=rest_s, detail=words[-1])


def _answer(process: "subprocess.Popen[str]") -> tuple[str, str]:
    try:
        return process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return said, f"no answer within {_LIMIT_S:.0f} s"


def _finding(backend: str, name: str, works: bool, seconds: float, detail: str) -> CheckResult:
    return CheckResult(
        "host" if backend == "gloo" else "cuda", "distributed", f"{backend} {name}", works, False, seconds, detail
    )


def take_part(rank: int, world: int, backend: str, meeting: str) -> None:
    """One process of the group: makes every collective and says what came of it."""
    from torch import distributed

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=_ANSWER_WITHIN_S),
    )
    for name, collective in _collectives(rank, world, device).items():
        began_s = time.perf_counter()
        try:
            found, right = collective()
            works = torch.equal(found, right)
            detail = "the right values arrived" if works else f"{found.tolist()} instead of {right.tolist()}"
        except (RuntimeError, ValueError) as error:
            works, detail = False, str(error).strip().splitlines()[0]
        seconds = time.perf_counter() - began_s
        print(json.dumps({name: {"works": works, "detail": detail, "seconds": seconds}}), flush=True)  # noqa: T201 - its answer
    distributed.destroy_process_group()


def _collectives(rank: int, world: int, device: torch.device) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Each with what must come out: rank r brings r + 1."""
    from torch import distributed

    own = float(rank + 1)
    total = sum(range(1, world + 1))

    def all_reduce() -> tuple[Any, Any]:
        values = torch.full((4,), own, device=device)
        distributed.all_reduce(values)
        return values, torch.full((4,), float(total), device=device)

    def broadcast() -> tuple[Any, Any]:
        values = torch.full((4,), own, device=device)
        distributed.broadcast(values, src=0)
        return values, torch.ones(4, device=device)

    def all_gather() -> tuple[Any, Any]:
        values = torch.empty(world, device=device)
        distributed.all_gather_into_tensor(values, torch.full((1,), own, device=device))
        return values, torch.arange(1.0, world + 1, device=device)

    def reduce_scatter() -> tuple[Any, Any]:
        values = torch.empty(1, device=device)
        distributed.reduce_scatter_tensor(values, torch.full((world,), own, device=device))
        return values, torch.full((1,), float(total), device=device)

    return {f.__name__: f for f in (all_reduce, broadcast, all_gather, reduce_scatter)}


if __name__ == "__main__":
    take_part(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
