"""What may change when a run is resumed: how it is computed, not what. The result is the same but for rounding."""

from collections.abc import Sequence
from pathlib import Path

from foretune.choices.experiment import Experiment
from foretune.choices.section import question_in
from foretune.config.overrides import parse_overrides
from foretune.config.readiness import TO_TRAIN
from foretune.config.reading import Asked, read_experiment
from foretune.core.errors import Mistakes, Refused
from foretune.record.run_directory import RunDirectory

_MAY_CHANGE = ("parallel", "levers", "save", "track", "train.batch_size", "train.gradient_accumulation")
# These decide what an optimizer keeps, so its state in a checkpoint would not fit.
_MAY_NOT = ("levers.optimizer_offload", "levers.fused_backward")


def read_changed(run: RunDirectory, overrides: Sequence[str]) -> Asked:
    """The experiment of a run with changes that a resumed run may have; raises Refused for others."""
    _, before, _ = run.read_experiment()
    mistakes = Mistakes()
    keys = [".".join(path) for path, _ in parse_overrides(overrides, mistakes)]
    mistakes.raise_all()
    for key in keys:
        if not _may_change(key):
            listed = ", ".join(_MAY_CHANGE)
            raise Refused(f"{key}: a resumed run may change only {listed} (without {' and '.join(_MAY_NOT)})")
    asked = read_experiment(Path(run.path) / "experiment.yaml", overrides, needs=TO_TRAIN)
    _require_same_batch(before, asked.experiment)
    assert question_in(asked.experiment) == question_in(before), "none of these keys is part of the question"
    return asked


def _may_change(key: str) -> bool:
    is_of = [key == one or key.startswith(f"{one}.") for one in _MAY_CHANGE]
    return any(is_of) and key not in _MAY_NOT


def _require_same_batch(before: Experiment, after: Experiment) -> None:
    global_batch = before.samples_per_step()
    if after.samples_per_step() == global_batch:
        return
    devices, batch = after.parallel.devices, after.train.batch_size
    accumulation, rest = divmod(global_batch, devices * batch)
    nearest = f". Nearest: train.gradient_accumulation={accumulation}" if accumulation and not rest else ""
    raise Refused(
        f"The global batch of the run is {global_batch}; {batch} (train.batch_size) x {devices} (parallel.devices) x "
        f"{after.train.gradient_accumulation} (train.gradient_accumulation) is {after.samples_per_step()}{nearest}"
    )
