"""Ranks on simulated devices that stay for many tests, because starting one takes seconds."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.training.rank_runs import RANK_VARIABLES
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

_ROOT = Path(__file__).parents[2]
_MOST_GROUPS = 24
"""Requests after which the ranks begin again: torch keeps the gloo groups of each, whose threads take all processors
once there are hundreds.
"""


class SimulatedRanks:
    """As many processes as devices."""

    def __init__(self, size: int, *, sees_one: bool = False, forked: "ForkedPython | None" = None) -> None:
        """Each process sees all simulated devices, as torchrun starts it, or only its own, as SLURM does with
        --gpus-per-task=1.

        Copies of a process begin at once, and have the devices that it was started with.
        """
        self.size, self._forked, self._sees_one = size, forked, sees_one
        self._num_together = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="foretune-simulated-ranks-")
        self._numbers = count()
        self._ranks = self._all_started()

    def _all_started(self) -> "list[subprocess.Popen[str]]":
        return [
            self._started(rank, {"CUDA_VISIBLE_DEVICES": str(rank)} if self._sees_one else {})
            for rank in range(self.size)
        ]

    def _started(self, rank: int, variables: dict[str, str]) -> "subprocess.Popen[str]":
        places = dict(zip(RANK_VARIABLES, (str(rank), str(self.size)) * 2 + ("",), strict=True))
        paths = os.pathsep.join(str(_ROOT / folder) for folder in ("src", "simaccel/src", ""))
        afresh = {"PYTHONPATH": paths, "SIMACCEL_DEVICES": str(self.size)}
        python = sys.executable if self._forked is None else self._forked.python
        with self._log(rank).open("w") as log:
            return subprocess.Popen(
                [python, "-m", "tests.simulated.rank_program"],
                env={
                    **os.environ,
                    **places,
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                    "SIMACCEL": "cuda",
                    **(afresh if self._forked is None else self._forked.variables),
                    **variables,
                },
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _log(self, rank: int) -> Path:
        return Path(self._scratch.name) / f"log-{rank}.txt"

    def together(self, request: dict[str, Any], by_rank: dict[int, dict[str, Any]] | None = None) -> list[Any]:
        """What each rank answers to one request that concerns all of them."""
        if self._num_together == _MOST_GROUPS:
            self._end()
            self._ranks, self._num_together = self._all_started(), 0
        self._num_together += 1
        return self._answers([{**request, **(by_rank or {}).get(rank, {})} for rank in range(self.size)])

    def alone(self, requests: Sequence[dict[str, Any]]) -> list[Any]:
        """Answers to requests that concern one process alone; the ranks share the work."""
        answers = []
        for first in range(0, len(requests), self.size):
            answers += self._answers([{**one, "alone": True} for one in requests[first : first + self.size]])
        return answers

    def _answers(self, requests: Sequence[dict[str, Any]]) -> list[Any]:
        store = str(Path(self._scratch.name) / f"store-{next(self._numbers)}")
        ranks = self._ranks[: len(requests)]
        for process, request in zip(ranks, requests, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps({"store": store, **request}) + "\n")
            process.stdin.flush()
        return [self._answer(rank, process) for rank, process in enumerate(ranks)]

    def _answer(self, rank: int, process: "subprocess.Popen[str]") -> Any:
        assert process.stdout is not None
        is_there = select.select([process.stdout], [], [], HANG_S)[0]
        line = process.stdout.readline() if is_there else ""
        assert line, f"rank {rank} gave no answer:\n{self._log(rank).read_text()[-4000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def __enter__(self) -> Self:
        return self

    def _end(self) -> None:
        for process in self._ranks:
            process.kill()
            process.communicate()

    def __exit__(self, *_: object) -> None:
        self._end()
        self._scratch.cleanup()
