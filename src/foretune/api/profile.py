"""`profile`: a look inside a few steps, and what holds them back."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.process_state import torch_kept
from foretune.api.run import Run
from foretune.api.start import (
    Changes,
    ExperimentFile,
    ExperimentLike,
    announce,
    import_libraries,
    read_to_start,
)
from foretune.choices.model import PIPELINE_INDEX
from foretune.core.errors import UserError
from foretune.core.observer import Observer

_NUM_STEPS = 5
"""Under the profiler, where none are named."""

if TYPE_CHECKING:
    from foretune.analyse.diagnosis import Diagnosis
    from foretune.analyse.trace_digest import TraceDigest


@dataclass(frozen=True)
class ProfiledRun:
    """A profiled run: where its time goes, in numbers and in words."""

    run: Path
    trace: Path
    """Opens in ui.perfetto.dev and in TensorBoard's profiler plugin."""
    digest: "TraceDigest"
    diagnoses: "tuple[Diagnosis, ...]"

    def __str__(self) -> str:
        return "\n".join(f"{one.text[0].upper()}{one.text[1:]}." for one in self.diagnoses)

    def write_plots(self) -> tuple[Path, ...]:
        """Draws it beside the trace; needs `foretune[plots]`."""
        from foretune.reports.profile_plot import write_profile_plot

        return tuple(write_profile_plot(self.digest, self.trace.parent))


def profile(
    target: ExperimentLike | Run,
    changes: Changes | None = None,
    *,
    data: str | Path | None = None,
    steps: int | None = None,
    runs: str | Path = "runs",
    observer: Observer | None = None,
) -> ProfiledRun:
    """Profiles a few steps of an experiment; of a run that has a trace, says what is in it.

    Args:
        target: an experiment file or mapping; a model, as for `train`; or a run with a trace.
        changes: settings for this run by dotted key.
        data: with a model: what it is trained on, as for `train`.
        steps: steps under the profiler; 5 by default.
        runs: where run directories are made.
        observer: receives progress.
    """
    from foretune.analyse.diagnosis import diagnose, evidence_of
    from foretune.analyse.trace_digest import digest, newest_trace

    run = _finished(target)
    if run is None:
        assert not isinstance(target, Run)
        run = _profiled(target, changes, data, steps or _NUM_STEPS, Path(runs), observer or Observer())
    else:
        given = {"--data": data is not None, "--steps": steps is not None, "key=value": bool(changes)}
        for what, is_given in given.items():
            if is_given:
                raise UserError(
                    f"{what} goes with an experiment or a model. {run} is a run, and its trace is only summarised. "
                    f"To profile it again: foretune profile {run / 'experiment.yaml'}"
                )
    trace = newest_trace(run)
    found = digest(trace, within=run)
    return ProfiledRun(run, trace, found, tuple(diagnose(evidence_of(run, found))))


def _finished(target: ExperimentLike | Run) -> Path | None:
    """The directory of a run; None for what is still to be profiled."""
    if isinstance(target, Run):
        return target.path
    if not isinstance(target, str | Path) or not Path(target).is_dir() or (Path(target) / PIPELINE_INDEX).is_file():
        return None
    return Path(target)


def _profiled(
    experiment: ExperimentLike,
    changes: Changes | None,
    data: str | Path | None,
    steps: int,
    runs: Path,
    observer: Observer,
) -> Path:
    asked = read_to_start(experiment, changes, "Profiling", ("data", "adapters"), data=data)
    announce(asked, observer, has_length=False)
    device = asked.experiment.parallel.device
    import_libraries(observer, "foretune.measure.profiling", warns_if_busy=True, device=device)
    from foretune.measure.profiling import profile as run_profile

    with torch_kept():
        run = run_profile(asked, runs, steps, observer).path
    ExperimentFile(asked, observer, "profile", "--steps", str(steps)).began(run)
    return run
