"""Starts the processes of a run on this machine, with torch's elastic agent.

The processes find each other through files in a private folder and talk over the loopback interface: nothing listens on
a public address. Several nodes are started by torchrun or SLURM instead.
"""

import json
import os
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretune.choices.running import Parallel
from foretune.core.errors import UserError
from foretune.core.interrupts import SAME_COMMAND, Interrupted
from foretune.core.observer import Observer
from foretune.core.observer_lines import notify_observer
from foretune.core.thread_waiting import with_passive_waiting
from foretune.core.values import RunRecord
from foretune.executors.executor import require_processes
from foretune.record.run_directory import RunDirectory
from foretune.training.ranks import found_ranks

REQUEST_VARIABLE = "FORETUNE_RANK_REQUEST"
"""Where a process of a run finds what it should do."""
PIPE = "reports"
"""Through which the first process reports, in the folder that all of them know."""
ANSWER, REFUSED = "answer", "refused"
"""Lines of the first process: what it returned, or why it could not start."""
_STOPPING_S = 600
"""Asked to stop, the processes finish their step and save; what takes longer than this is killed."""


class RunEnded(Exception):
    """A run on several devices failed."""


@dataclass
class Launched:
    """What the processes left behind."""

    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last line of each kind that the first process sent."""
    failures: dict[int, str] = field(default_factory=dict)
    """By rank, why processes failed."""
    signal: str | None = None
    """The signal that ended all of them."""

    @property
    def answer(self) -> dict[str, Any]:
        """What the first process returned; nothing if it failed."""
        return self.reports.get(ANSWER, {})

    def run(self) -> Path:
        """The run directory that they made. If they made none, raises UserError, or Interrupted after a signal."""
        if REFUSED in self.reports:
            raise UserError(self.reports[REFUSED]["text"])
        if "began" not in self.reports:
            if self.signal is not None:
                raise Interrupted(f"Interrupted by {self.signal}. No step was made. {SAME_COMMAND}")
            raise UserError(f"No step was made. {self.why()}")
        return Path(self.reports["began"]["run"])

    def why(self) -> str:
        """Why there is no record, in a sentence."""
        if self.failures:
            rank, reason = min(self.failures.items())
            return f"Process {rank} of the run failed: {reason}"
        return f"The processes of the run were ended by {self.signal or 'something that left no trace'}."


def refuse_launcher(what: str) -> None:
    """Raises where torchrun or SLURM has already started several processes for something that starts its own."""
    found = found_ranks()
    if found is not None:
        raise UserError(
            f"{what} starts its own processes, and {found.started_by} started {found.size}. Run it without a launcher, "
            "on one machine."
        )


def launch(parallel: Parallel, worker: str, request: Mapping[str, Any], observer: Observer) -> Launched:
    """Runs a request in as many processes as there are devices; returns when all have ended.

    `worker` is a module that each of them runs; it calls `rank_process.run_rank`.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    result = Launched()
    with tempfile.TemporaryDirectory(prefix="foretune-ranks-") as folder:
        scratch = Path(folder)
        (scratch / "request.json").write_text(json.dumps(request), encoding="utf-8")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=parallel.devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=str(scratch / "rendezvous"),
            rdzv_configs={"store_type": "file"},
            logs_specs=DefaultLogsSpecs(log_dir=str(scratch), redirects=Std.ALL),
            max_restarts=parallel.restarts,
            local_addr="127.0.0.1",
            signals_to_handle="SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
            shutdown_timeout=_STOPPING_S,
        )
        with _heard(scratch, observer, result), _variables(scratch, parallel.devices):
            try:
                elastic_launch(config, sys.executable)("-m", worker)
            except ChildFailedError as error:
                result.failures = {rank: _reason(one.message) for rank, one in error.failures.items()}
            except SignalException as stopped:
                result.signal = stopped.sigval.name
    return result


def _reason(message: Any) -> str:
    """What a failed process wrote, or torch's words for how it ended."""
    text = message.get("message", message) if isinstance(message, dict) else message
    return str(text).strip().splitlines()[0] if str(text).strip() else "it left no message"


def launch_parts(
    what: str, parallel: Parallel, worker: str, request: Mapping[str, Any], observer: Observer
) -> dict[str, Any]:
    """The answer of the first of several processes that make no run. `what` begins messages: "Sampling"."""
    from foretune.training.devices import refuse_absent_devices

    refuse_launcher(what)
    require_processes(f"{what} on several devices", nearest="one device")
    refuse_absent_devices(parallel)
    launched = launch(parallel, worker, request, observer)
    if REFUSED in launched.reports:
        raise UserError(launched.reports[REFUSED]["text"])
    if launched.signal is not None:
        raise Interrupted(f"Interrupted by {launched.signal}. Nothing was written.")
    if launched.failures or ANSWER not in launched.reports:
        raise UserError(f"{what} on {parallel.devices} devices failed. {launched.why()}")
    return launched.answer


def launch_once(
    what: str, parallel: Parallel, worker: str, request: Mapping[str, Any], observer: Observer
) -> tuple[RunDirectory, RunRecord]:
    """The run of a bench or a study, and its record. Started again, the processes would begin another run."""
    refuse_launcher(what)
    require_processes(f"{what} on several devices", nearest="parallel.devices=1")
    launched = launch(parallel.model_copy(update={"restarts": 0}), worker, request, observer)
    run = RunDirectory(launched.run())
    record = run.read_record()
    if record is None:
        raise RunEnded(launched.why())
    return run, record


@contextmanager
def _heard(scratch: Path, observer: Observer, result: Launched) -> Iterator[None]:
    """Passes on what the first process reports, through a pipe that outlives it: it may be started again."""
    path = scratch / PIPE
    os.mkfifo(path, 0o600)
    # Open for both, so that the reader sees no end when a process closes its side.
    descriptor = os.open(path, os.O_RDWR)
    errors: list[BaseException] = []

    def hear() -> None:
        with os.fdopen(descriptor, "r", encoding="utf-8") as lines:
            for line in lines:
                if line == "\n":
                    return
                try:
                    kind, fields = notify_observer(line, observer)
                except BaseException as error:  # noqa: BLE001 - raised where the processes are waited for
                    errors.append(error)
                    return
                result.reports[kind] = fields

    listener = threading.Thread(target=hear, name="foretune-ranks", daemon=True)
    listener.start()
    try:
        yield
    finally:
        with path.open("w", encoding="utf-8") as end:
            end.write("\n")
        listener.join()
    if errors:
        raise errors[0]


def threads_of_each(num_processes: int) -> int:
    """Returns how many threads each process of this machine gets of the processors that this one may use."""
    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, num_processors // num_processes)


@contextmanager
def _variables(scratch: Path, num_processes: int) -> Iterator[None]:
    """The agent gives its own environment to the processes; it gets back what it had."""
    before = dict(os.environ)
    os.environ.update(with_passive_waiting(os.environ))
    os.environ[REQUEST_VARIABLE] = str(scratch)
    # The processes do not need the agent's store, which would listen on every address.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_each(num_processes)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
