"""The processes of one run: who they are, how they join, and how they decide together.

A process finds out what it is from the variables of whoever started it: torchrun and `accelerate launch` (RANK,
WORLD_SIZE, LOCAL_RANK), Foretune's own start of several devices, which is torch's elastic agent too, or SLURM's srun.
"""

import atexit
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from foretune.choices.running import Parallel
from foretune.core.errors import Refused

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

STORE_VARIABLE = "FORETUNE_STORE"
"""A file in which processes of one machine find each other. Without it they use MASTER_ADDR and MASTER_PORT."""
_FIRST_PORT, _NUM_PORTS = 20_000, 20_000
_BACKGROUND_HOURS = 12
_JOIN_S = 600.0
"""Processes may start minutes apart, and the first one plans before it joins: they wait so long at least."""
_left_groups: "list[dist.ProcessGroup]" = []
"""Kept until this process ends, so that DDP is never the last to hold a group.

DDP would destroy it with the GIL held and wait for gloo's threads, which need the GIL to release their last tensors:
the process would hang (pytorch/pytorch#56297). Python's own reference lets go of the GIL first.
"""
atexit.register(_left_groups.clear)
_NO_ANSWER = "another process of the run did not answer"
_CLOSED = "the connection to another process of the run was closed"
_WORDS_OF_GLOO = ("/gloo/", "caused pair closure")
"""gloo raises a plain RuntimeError: its source file is named in most of them, and in one only these words."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of its run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the processes of this node."""
    local_size: int = 1
    started_by: str = "this process"
    group: "dist.ProcessGroup | None" = None
    """Which group talks; None is the one that all processes joined."""

    @property
    def is_first(self) -> bool:
        """The first process owns the run directory: it alone writes the log and samples, and commits checkpoints."""
        return self.rank == 0

    def apart(self) -> "Ranks":
        """The same processes with a group of their own, for a background thread. All call it.

        It waits for hours: writing may take long, and a process that is lost closes the connection.
        """
        if self.size == 1:
            return self
        import torch.distributed as dist

        return replace(self, group=dist.new_group(backend="gloo", timeout=timedelta(hours=_BACKGROUND_HOURS)))

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier(group=self.group)

    def from_first(self, value: Any) -> Any:
        """What the first process gives, in all of them. It is sent as JSON, which cannot carry code."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        content = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(content)])
        dist.broadcast(length, src=0, group=self.group)
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.is_first else None
        received = sent if sent is not None else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(received, src=0, group=self.group)
        return json.loads(received.numpy().tobytes())

    def from_all(self, value: Any) -> list[Any]:
        """What each process gives, by rank. All of them get the list."""
        if self.size == 1:
            return [value]
        import torch
        import torch.distributed as dist

        content = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(content)]), group=self.group)
        padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded, group=self.group)
        pairs = zip(gathered, lengths, strict=True)
        return [json.loads(one.numpy().tobytes()[: int(length)]) for one, length in pairs]

    @contextmanager
    def first_works_alone(self) -> Iterator[Callable[[], object]]:
        """For the first process, while the others are in `wait_for_first`: yields what it calls to show progress.

        They wait `Parallel.timeout_s` for each sign of progress, not for the whole work.
        """
        try:
            yield partial(self.from_first, True)
        finally:
            self.from_first(False)

    def wait_for_first(self, progressed: Callable[[], object]) -> None:
        """Returns when the first process has ended its work. `progressed` is called at each sign of progress."""
        while self.from_first(None):
            progressed()


ALONE = Ranks()


def found_ranks(variables: Mapping[str, str] = os.environ) -> Ranks | None:
    """The place that a launcher gave this process; None where nobody did."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        size = int(variables["WORLD_SIZE"])
        by_torchrun = "TORCHELASTIC_RUN_ID" in variables
        if size == 1 and not by_torchrun:
            return None  # some platforms set these for every container
        return Ranks(
            rank=int(variables["RANK"]),
            size=size,
            local_rank=int(variables.get("LOCAL_RANK", variables["RANK"])),
            local_size=int(variables.get("LOCAL_WORLD_SIZE", size)),
            started_by=_starter(variables),
        )
    # Under sbatch without srun the variables of the job are there, but none of a step, and only one process is.
    tasks = variables.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return Ranks(
            rank=int(variables["SLURM_PROCID"]),
            size=int(variables["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(variables.get("SLURM_LOCALID", "0")),
            local_size=int(re.split(r"[(,]", tasks)[0]),
            started_by="SLURM",
        )
    return None


def _starter(variables: Mapping[str, str]) -> str:
    if STORE_VARIABLE in variables:
        return "Foretune"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in variables else "RANK and WORLD_SIZE"


def check_ranks(asked: Parallel, found: Ranks | None) -> None:
    """Refuses a number of processes that is not the number of devices: each would train a model of its own."""
    size = 1 if found is None else found.size
    if size == asked.devices:
        return
    starter = "nothing started more than this process" if found is None else f"{found.started_by} started {size}"
    raise Refused(
        f"parallel.devices: {asked.devices} devices take as many processes, and {starter}. "
        f"Nearest: parallel.devices={size}"
    )


@contextmanager
def joined(asked: Parallel, found: Ranks, device: "torch.device") -> Iterator[Ranks]:
    """Joins the other processes; yields when all are there."""
    if found.size == 1:
        yield found
        return
    import torch.distributed as dist

    # Numbers on the host go over gloo, those on the device over its own library (NCCL, or RCCL under that name).
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    options: dict[str, Any] = {"rank": found.rank, "world_size": found.size}
    if STORE_VARIABLE in os.environ:
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        options["store"] = FileStore(os.environ[STORE_VARIABLE], found.size)
    elif found.started_by == "SLURM":
        options["init_method"] = _slurm_address(os.environ)
    if device.type == "cuda":
        import torch

        # NCCL and FSDP2 use the current device, which would be the first one in every process.
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=max(asked.timeout_s, _JOIN_S)), **options)
    from torch.distributed.distributed_c10d import _set_pg_timeout

    _set_pg_timeout(timedelta(seconds=asked.timeout_s))
    assert dist.group.WORLD is not None
    _left_groups.append(dist.group.WORLD)
    try:
        yield found
    finally:
        dist.destroy_process_group()


def lost_process(error: Exception, asked: Parallel) -> str | None:
    """That another process is gone or cannot be reached, in a sentence; None for an error of another kind."""
    import torch.distributed as dist

    text = str(error)
    is_network = isinstance(error, dist.DistError) or any(words in text for words in _WORDS_OF_GLOO)
    if not is_network:
        return None
    if "Timed out" in text or "timeout" in text.lower():
        return (
            f"{_NO_ANSWER} for {asked.timeout_s:g} s (parallel.timeout_s): it is gone, it hangs, or the network is cut"
        )
    return f"{_CLOSED}: it ended, was killed, or its node is gone"


def is_of_lost_process(error: Exception, asked: Parallel) -> bool:
    """Whether another process is the cause of an error, or of the end of a run that the error reports."""
    text = str(error)
    return _NO_ANSWER in text or _CLOSED in text or lost_process(error, asked) is not None


def _slurm_address(variables: Mapping[str, str]) -> str:
    """The first node of the job step, and a port that follows from the job, so that two jobs seldom meet on it."""
    nodes = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_JOB_NODELIST", "127.0.0.1"))
    port = _FIRST_PORT + (int(variables["SLURM_JOB_ID"]) * 7 + int(variables["SLURM_STEP_ID"])) % _NUM_PORTS
    return f"tcp://{first_host(nodes)}:{port}"


def first_host(nodes: str) -> str:
    """The first of a list of SLURM: `node[01-04,7],other` gives node01."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", nodes)
    assert match is not None, f"not a list of nodes: {nodes!r}"
    name, numbers = match.groups()
    return name if numbers is None else name + re.split(r"[,-]", numbers)[0]


@dataclass(frozen=True)
class Wants:
    """What a process would have all of them do after a step."""

    stop: str | None = None
    """The signal that asked it to stop."""
    is_over: bool = False
    """Its time is up. The first process has the clock."""
    has_failed: bool = False
    """Its numbers are no longer finite."""


class Agreement:
    """Lets all processes make the same decision after the same step.

    The wishes of a step are sent when it has been handed over and read after the next one, so that nobody waits for
    them: a run that is asked to stop makes one step more than a single process would. `at_once` waits.
    """

    def __init__(self, ranks: Ranks, *, at_once: bool = False) -> None:
        self._ranks, self._at_once = ranks, at_once
        self._sent: tuple[torch.Tensor, dist.Work | None] | None = None

    def after_step(self, own: Wants) -> Wants:
        """What all of them do now."""
        if self._ranks.size == 1:
            return own
        before, self._sent = self._sent, self._send(own)
        if self._at_once:
            before, self._sent = self._sent, None
        return Wants() if before is None else _received(before)

    def _send(self, own: Wants) -> "tuple[torch.Tensor, dist.Work | None]":
        import torch
        import torch.distributed as dist

        number = 0 if own.stop is None else int(signal.Signals[own.stop])
        wishes = torch.tensor([number, int(own.is_over), int(own.has_failed)])
        return wishes, dist.all_reduce(wishes, op=dist.ReduceOp.MAX, async_op=True)


def _received(sent: "tuple[torch.Tensor, dist.Work | None]") -> Wants:
    wishes, work = sent
    if work is not None:
        work.wait()
    number, is_over, has_failed = wishes.tolist()
    return Wants(signal.Signals(number).name if number else None, bool(is_over), bool(has_failed))
