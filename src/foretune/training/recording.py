"""The record of a run whose steps were prepared, however they were made: in a training, a bench or under a profiler."""

from collections.abc import Iterable
from typing import Any

from foretune.core.values import Outcome, RunRecord
from foretune.core.values.run_record import Measured
from foretune.record.environment import environment_hash
from foretune.record.run_directory import RunDirectory
from foretune.training.preparing import Prepared


def record_of(
    run: RunDirectory,
    prepared: Prepared,
    *,
    outcome: Outcome,
    environment: dict[str, Any],
    measured: Measured,
    wall_s: float,
    warnings: Iterable[str],
) -> RunRecord:
    """What came of the run, with the plan that was stored before its first step."""
    effective = prepared.effective
    return RunRecord(
        run_id=run.run_id,
        question_hash=effective["question_hash"],
        experiment_hash=effective["experiment_hash"],
        outcome=outcome,
        environment=environment,
        environment_hash=environment_hash(environment),
        plan=run.read_plan(),
        measured=measured,
        num_trainable_params=effective["num_trained_params"],
        num_params=effective["num_params"],
        wall_s=wall_s,
        warnings=tuple(warnings),
    )
