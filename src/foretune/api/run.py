"""A run directory as a value: what was asked, how it ended, what was measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.core.errors import UserError
from foretune.core.values import Plan, RunRecord

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment
    from foretune.core.values.run_record import Measured


@dataclass(frozen=True)
class Run:
    """A training run on disk. `train` and `resume` return one; `open_run` opens one that is there."""

    path: Path
    experiment: "Experiment"
    """As it was understood: every choice, defaults included."""
    record: RunRecord | None
    """None while the run goes on, or where it was killed."""
    num_changed_tensors: int | None = None
    """Of the trained tensors, those that training changed; None where the run was opened, not trained."""
    num_trained_tensors: int | None = None
    base_unchanged: bool | None = None
    """Whether the frozen base has the checksum it had; None where the base itself is trained, or was not looked at."""

    @property
    def status(self) -> str:
        """finished, interrupted, failed, out of memory; or `no record`."""
        return "no record" if self.record is None else self.record.outcome.status

    @property
    def plan(self) -> Plan | None:
        """The forecast that was stored before the first step."""
        return None if self.record is None else self.record.plan

    @property
    def measured(self) -> "Measured | None":
        return None if self.record is None else self.record.measured

    @property
    def can_resume(self) -> bool:
        """Whether `resume` can continue it: it did not finish, and its last checkpoint is good."""
        from foretune.record.log_summary import NOTHING_SAVED

        if self.record is None:
            return True
        outcome = self.record.outcome
        return outcome.status != "finished" and NOTHING_SAVED not in (outcome.reason or "")

    def __str__(self) -> str:
        from foretune.reports.terminal.run import run_lines

        return "\n".join(run_lines(self.path, self.record, self.experiment.profile))

    def _repr_html_(self) -> str:
        from foretune.reports.fragments import run_fragment

        return run_fragment(self.path, self.record, self.experiment.profile)


class RunFailed(UserError):
    """A run that ended early; its directory, record and last checkpoint are there."""

    exit_code = 1

    def __init__(self, run: Run) -> None:
        assert run.record is not None, "a run that failed has a record"
        self.run = run
        outcome = run.record.outcome
        super().__init__(f"{outcome.status.capitalize()} after step {outcome.steps_done}: {outcome.reason}")


def open_run(path: str | Path) -> Run:
    """A run directory, such as `runs/<experiment>/latest`."""
    from foretune.record.run_directory import RunDirectory

    directory = RunDirectory.open(Path(path))
    _, experiment, _ = directory.read_experiment()
    return Run(directory.path, experiment, directory.read_record())


RunLike = Run | str | Path


def path_of(run: RunLike) -> Path:
    """Where a run is."""
    return run.path if isinstance(run, Run) else Path(run)


def paths_of(runs: RunLike | Iterable[RunLike]) -> list[Path]:
    """One run, one folder, or several of them."""
    if isinstance(runs, Run | str | Path):
        return [path_of(runs)]
    return [path_of(run) for run in runs]
