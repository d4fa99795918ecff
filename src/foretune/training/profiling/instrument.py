"""torch's profiler as an instrument: it looks at some steps of a loop and leaves a trace."""

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from foretune.accelerator.timing import wait_for
from foretune.core.observer import Observer
from foretune.core.vocabulary import MemoryPart
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory
from foretune.step.training_step import TrainingStep
from foretune.training.instruments import Instrument
from foretune.training.phases import PhaseClock
from foretune.training.preparing import Prepared
from foretune.training.profiling.marks import BlockRanges, phase_range, step_range
from foretune.training.profiling.trace_file import write_trace


def profilers(
    prepared: Prepared, clock: PhaseClock, run: RunDirectory, events: EventLog, observer: Observer
) -> list[Instrument]:
    """What an experiment asks for in its `profile` section: one profiler, or none."""
    asked, num_steps = prepared.experiment.profile, prepared.num_steps
    if asked is None:
        return []
    first = asked.at_step - 1
    if num_steps is not None and first >= num_steps:
        observer.warning(
            f"Nothing will be profiled: profile.at_step is {asked.at_step}, and the run has {num_steps} steps."
        )
    return [Profiler(prepared, clock, run.profile, first, asked.steps, events, observer.message)]


class Profiler:
    """Starts before its first step and stops after its last. The trace is written before the next step, or at the end:
    by then the loop has reported the profiled steps.
    """

    def __init__(
        self,
        prepared: Prepared,
        clock: PhaseClock,
        directory: Path,
        first_step: int,
        num_steps: int,
        events: EventLog,
        say: Callable[[str], None],
    ) -> None:
        self._prepared, self._clock, self._directory = prepared, clock, directory
        self._first_step, self._last_step = first_step, first_step + num_steps - 1
        self._events, self._say = events, say
        self._profile: Any = None
        self._stopped: Any = None
        """A profile whose trace is not written yet."""
        self._blocks: BlockRanges | None = None
        self._step: Any = None
        self._num_seen = 0
        self._stop_s = 0.0
        self._held_bytes: dict[str, int] = {}

    def before_step(self, step: int) -> None:
        self._write()
        if step == self._first_step:
            self._start()
        if self._profile is not None:
            self._step = step_range(step)
            self._step.__enter__()

    def after_step(self, step: int) -> None:
        if self._profile is None:
            return
        self._end_step()
        self._num_seen += 1
        if step >= self._last_step:
            self._stop()

    def close(self) -> None:
        """A run that ends early leaves the steps that were seen."""
        if self._profile is not None:
            self._end_step()
            self._stop()
        self._write()

    def _start(self) -> None:
        device, self._held_bytes = self._prepared.device.type, held_bytes(self._prepared.step)
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
        profile = torch.profiler.profile(activities=activities, profile_memory=True)
        profile.start()
        self._profile = profile
        self._clock.annotate = phase_range
        if self._prepared.experiment.levers.compile == "off":
            # Hooks on a compiled block would compile it again.
            self._blocks = BlockRanges(self._prepared.family, self._prepared.step.denoiser)

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _stop(self) -> None:
        """Whatever fails here, the loop is left as it was before the first step."""
        profile, self._profile = self._profile, None
        self._clock.annotate = None
        if self._blocks is not None:
            self._blocks.remove()
        wait_for(self._prepared.device)  # what the device still does belongs to these steps
        begun_s = time.perf_counter()
        profile.stop()
        self._stop_s, self._stopped = time.perf_counter() - begun_s, profile

    def _write(self) -> None:
        profile, self._stopped = self._stopped, None
        if profile is None:
            return
        with tempfile.TemporaryDirectory() as scratch:
            raw = Path(scratch) / "raw.json"
            profile.export_chrome_trace(str(raw))
            path = write_trace(raw, self._directory, self._notes())
        last = self._first_step + self._num_seen
        self._events.append(
            "profiled", first_step=self._first_step, num_steps=self._num_seen, path=path.name, stop_s=self._stop_s
        )
        self._say(f"Steps {self._first_step + 1} to {last} were profiled: {path}")

    def _notes(self) -> dict[str, Any]:
        """What a reader of the trace cannot find in it."""
        return {
            "device": self._prepared.device.type,
            "first_step": self._first_step,
            "num_steps": self._num_seen,
            "num_workers": self._prepared.experiment.data.num_workers,
            "held_bytes": self._held_bytes,
        }


def held_bytes(step: TrainingStep) -> dict[str, int]:
    """What is in memory before a step begins, by category."""
    kept = [*step.optimizer.kept_once(), *(t for weight in step.trained.values() for t in step.optimizer.kept(weight))]
    averages = step.ema.average.values() if step.ema is not None else ()
    return {
        "parameters": _num_bytes(step.denoiser.parameters()),
        MemoryPart.OPTIMIZER_STATE: _num_bytes([*kept, *averages]),
    }


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    """Each storage once: weights may share theirs."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())
