"""`rehearse`: every phase of a run once, in minutes, before the run that takes days."""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.run import Run
from foretune.api.start import Changes, ExperimentLike, overrides_of, read_to_start
from foretune.api.train import resume, train
from foretune.core.errors import Refused, UserError
from foretune.core.observer import Observer
from foretune.core.units import bytes_text, counted_text, duration_text
from foretune.core.values import Plan
from foretune.core.vocabulary import RunPhase, TimePhase

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment

_STEPS, _SAVED_AT = 4, 2
_SHORT: dict[str, Any] = {
    "train.steps": _STEPS,
    "train.epochs": None,
    "train.seconds": None,
    "data.only_largest_bucket": True,
    "save.every": _SAVED_AT,
    "save.keep": 2,
    "validate.every": None,
    "track": [],
    "profile": None,
}
_CLOSE = 1e-3
"""Relative difference of losses after a resume that kernels with a varying order of sums may cause."""


@dataclass(frozen=True)
class RehearsedPhase:
    """One phase: how long it took, and how often the whole run has it."""

    name: str
    seconds: float
    times: int | None
    """None where time decides when the run ends."""


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found. It raises where a phase fails, so all of them ran."""

    phases: tuple[RehearsedPhase, ...]
    plan: Plan | None
    """The forecast of memory, of one device; None where there is none."""
    peak_bytes: int
    """Measured: of the device, or of the process where it trains on the CPU."""
    checkpoint_bytes: int
    resume_difference: float
    """Largest relative difference of losses between the first try and the resumed one."""

    @property
    def total_s(self) -> float | None:
        """The whole run at these speeds, without encoding of samples that the rehearsal did not need."""
        if any(phase.times is None for phase in self.phases):
            return None
        return sum(phase.seconds * (phase.times or 0) for phase in self.phases)

    def lines(self) -> list[str]:
        """As text, a line each."""
        found = ["Rehearsal: every phase of the run works."]
        for phase in self.phases:
            times = "until the time is up" if phase.times is None else counted_text(phase.times, "times")
            found.append(f"  {phase.name:<12} {duration_text(phase.seconds):>10}   {times}")
        same = "the same losses" if self.resume_difference == 0 else f"losses within {self.resume_difference:.1g}"
        found.append(f"  resumed from its checkpoint ({bytes_text(self.checkpoint_bytes)}): {same}")
        found.append(self._memory_line())
        if self.total_s is not None:
            found.append(f"  The run will take about {duration_text(self.total_s)}, without encoding more of the data.")
        return found

    def _memory_line(self) -> str:
        measured = f"measured {bytes_text(self.peak_bytes)}"
        if self.plan is None:
            return f"  memory: {measured}"
        expected_bytes = self.plan.at_peak.process_bytes
        return (
            f"  memory: estimated {bytes_text(expected_bytes)}, {measured} "
            f"({(self.peak_bytes - expected_bytes) / expected_bytes:+.0%})"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())


def rehearse(
    experiment: ExperimentLike,
    changes: Changes | None = None,
    *,
    data: str | Path | None = None,
    runs: str | Path = "runs",
    observer: Observer | None = None,
) -> Rehearsal:
    """Runs every phase of a training once: loads, encodes, steps, validates, saves, resumes. Arguments as for `train`.

    It trains four steps of the largest bucket in a folder below `runs`, so that the same disk is used, drops the last
    checkpoint, resumes from the one before and compares the losses. The folder is removed unless a phase fails;
    encoded samples stay in the cache.

    Raises:
        RunFailed: a phase failed; `error.run` is what it left.
        UserError: it cannot be started; the text says what to change.
    """
    from foretune.config.readiness import TO_TRAIN
    from foretune.training.ranks import found_ranks

    if found_ranks() is not None:
        raise Refused(
            "A rehearsal starts its own processes, and a launcher has started these. Rehearse on one node without it "
            "first: foretune train experiment.yaml --rehearse parallel.devices=N"
        )
    observer = observer or Observer()
    asked = read_to_start(experiment, changes, "Training", TO_TRAIN, Path(runs), data=data)
    whole = asked.experiment
    if asked.is_by_name:
        experiment = {"name": whole.name, **asked.as_asked}
    short = (*overrides_of(changes), *overrides_of(_SHORT))
    Path(runs).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".rehearsal-", dir=runs))
    observer.message(f"Rehearsing in {folder}: {counted_text(_STEPS, 'steps')}.")
    try:
        first = _finished(train(experiment, short, runs=folder, observer=observer))
        before = _losses(first)
        _forget_the_end(first)
        found = _found(whole, first, _finished(resume(first.path, observer=observer)), before)
    except UserError:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise  # what it left says why
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    if found.resume_difference > _CLOSE:
        observer.warning(
            f"Losses after a resume differ by {found.resume_difference:.1g} from those without one. On a CPU they "
            "should be equal; on a GPU, kernels that add in varying order may explain small differences."
        )
    return found


def _finished(run: Run) -> Run:
    """Processes that Foretune started are interrupted by a signal without an exception here."""
    if run.status != "finished":
        raise KeyboardInterrupt
    return run


def _forget_the_end(run: Run) -> None:
    """As if it had been killed after its first checkpoint."""
    newest = max((run.path / "checkpoints").glob("step-*"))
    assert len(list(newest.parent.glob("step-*"))) > 1, "it saved in the middle, too"
    shutil.rmtree(newest)
    (run.path / "record.json").unlink()


def _events(run: Run) -> list[dict[str, Any]]:
    from foretune.record.events import read_events

    return list(read_events(run.path / "events.jsonl"))


def _losses(run: Run) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in _events(run) if event["kind"] == "step"}


def _found(whole: "Experiment", first: Run, again: Run, before: dict[int, float]) -> Rehearsal:
    assert first.record is not None, "it finished"
    measured, after = first.record.measured, _losses(again)
    newest = max((again.path / "checkpoints").glob("step-*"))
    peak_bytes = measured.peak_device_bytes or measured.peak_host_bytes
    assert peak_bytes is not None
    return Rehearsal(
        phases=_phases(whole, again),
        plan=first.plan,
        peak_bytes=peak_bytes,
        checkpoint_bytes=sum(file.stat().st_size for file in newest.iterdir()),
        resume_difference=max(abs(after[step] - loss) / max(abs(loss), 1e-12) for step, loss in before.items()),
    )


def _phases(whole: "Experiment", run: Run) -> tuple[RehearsedPhase, ...]:
    """From the log of both sessions: the second one begins with everything encoded."""
    from foretune.choices.run_schedule import RunSchedule
    from foretune.record.run_directory import RunDirectory

    _, _, effective = RunDirectory(run.path).read_experiment()
    train, events = whole.train, _events(run)
    of_all = "" if whole.data.only_largest_bucket else "_of_all_buckets"
    num_steps = train.steps or (train.epochs or 0) * int(effective[f"num_steps_per_epoch{of_all}"])
    times: dict[RunPhase, int | None] = {RunPhase.STEP: None, RunPhase.SAVE: None, RunPhase.VALIDATE: None}
    if train.seconds is None:
        planned = Counter(phase for phase, _ in RunSchedule.of(whole).phases(0, is_last=lambda done: done == num_steps))
        times = {phase: planned[phase] for phase in times}
    # The first step of each session compiles, chooses kernels and fills caches.
    firsts = {event["first_step"] for event in events if event["kind"] == "started"}
    steps_s = [event["step_s"] for event in events if event["kind"] == "step" and event["step"] not in firsts]
    assert run.record is not None, "it finished"
    prepare_s = run.record.measured.prepare_s
    found = [] if prepare_s is None else [RehearsedPhase("preparation", prepare_s, 1)]
    found.append(RehearsedPhase("step", sorted(steps_s)[len(steps_s) // 2], times[RunPhase.STEP]))
    for name, phase, clock in (
        ("checkpoint", RunPhase.SAVE, TimePhase.SAVE),
        ("validation", RunPhase.VALIDATE, TimePhase.VALIDATION),
    ):
        pauses_s = [event["phases_s"].get(clock) for event in events if event["kind"] == "paused"]
        known_s = [seconds for seconds in pauses_s if seconds is not None]
        if known_s:
            found.append(RehearsedPhase(name, max(known_s), times[phase]))
    return tuple(found)
