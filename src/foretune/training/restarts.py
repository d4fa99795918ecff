"""A launcher that starts its processes again: they go on with the run that they began.

torchrun starts them again after a failure (`--max-restarts`), SLURM when it requeues a job. Both repeat the command,
which would otherwise begin another run.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from foretune.choices.experiment import Experiment
from foretune.record.run_directory import RunDirectory

LAUNCH = "launch"
"""Where a run directory says which launch it belongs to."""


def launch_id(variables: Mapping[str, str] = os.environ) -> str | None:
    """What stays the same when the launcher repeats the command; None where nobody would."""
    if "TORCHELASTIC_RUN_ID" in variables:
        name = variables["TORCHELASTIC_RUN_ID"]
        # torchrun's default for nodes with fixed ranks, where the first process always has the same parent.
        return f"torchrun {socket.gethostname()} {os.getppid()}" if name == "none" else f"torchrun {name}"
    if "SLURM_JOB_ID" in variables:
        return f"SLURM {variables.get('SLURM_CLUSTER_NAME', '')} {variables['SLURM_JOB_ID']}"
    return None


def num_restarts(variables: Mapping[str, str] = os.environ) -> int:
    """How often the launcher has repeated the command, as this process knows it."""
    return int(variables.get("TORCHELASTIC_RESTART_COUNT", "0")) + int(variables.get("SLURM_RESTART_COUNT", "0"))


def unfinished_run(runs: Path, experiment: Experiment, launch: str) -> RunDirectory | None:
    """The newest run of a launch and an experiment that has not finished."""
    for file in sorted((runs / experiment.name).glob("2*/experiment.yaml"), reverse=True):
        run = RunDirectory(file.parent)
        _, found, effective = run.read_experiment()
        if effective.get(LAUNCH) == launch and found.whole_hash() == experiment.whole_hash():
            record = run.read_record()
            return run if record is None or record.outcome.status != "finished" else None
    return None
