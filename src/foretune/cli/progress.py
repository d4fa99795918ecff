"""What a person sees of a run: one live line on a terminal, a line now and then in a log file."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from foretune.api.peak_memory import measures_device, peak_memory
from foretune.cli.own_process import imports_done
from foretune.core.input_files import shown_lines
from foretune.core.observer import Observer, StepReport
from foretune.core.units import duration_text, memory_text, rates_text
from foretune.core.values import Plan

_LOG_LINE_EVERY_S = 5.0
_SAME_LOG_LINE_EVERY_S = 60.0
"""Where nothing has changed, a log says only that work goes on."""
# Drawing the line takes about a millisecond, and the loop waits for it.
_DRAW_EVERY_S = 1.0
_BAR_WIDTH = 24
# Time left and speed follow a moving average: a single slow step should not make them jump.
_SMOOTHING = 0.1


class SilentObserver(Observer):
    """Shows nothing: another process of the run does."""

    def imported(self) -> None:
        imports_done()


class ProgressObserver(Observer):
    """Shows preparation, steps with speed, loss, memory and time left, and messages above them."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.console = console or Console(stderr=True, highlight=False)
        # One line that is drawn when there is something new: a table of columns would take three times as long.
        self._line = Live(Text(), console=self.console, auto_refresh=False, transient=True)
        self._live = self.console.is_terminal
        self._what: str | None = None
        self._logged: tuple[str, int] | None = None
        self._step_s: float | None = None
        self._num_steps_seen = 0
        self._last_shown_s = -math.inf
        self._peak_bytes: Callable[[], int] | None = None
        self._estimated_bytes: int | None = None
        self._planned_step_s: float | None = None
        self._memory_shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line.is_started:
            self._line.stop()

    def imported(self) -> None:
        imports_done()

    def planned(self, plan: Plan) -> None:
        """Shows the plan beside what is measured. Memory is that of tensors on a device, of the process on the host."""
        self._estimated_bytes = plan.at_peak.allocated_bytes if measures_device() else plan.at_peak.process_bytes
        self._planned_step_s = None if plan.time is None else plan.time.step_s

    def message(self, text: str) -> None:
        self.console.print(shown_lines(text), markup=False, soft_wrap=True)

    def warning(self, text: str) -> None:
        self.console.print(f"Warning: {shown_lines(text)}", style="yellow", markup=False, soft_wrap=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        if self._is_due(what, done, total):
            self._show(what, done, total, "")

    def stepped(self, report: StepReport) -> None:
        step_s = report.step_s
        # The first step warms the machine up: it is shown, but the second one takes its place. Then a plain mean of
        # the first few, so that one slow step does not weigh for long.
        self._num_steps_seen += 1
        share = max(_SMOOTHING, 1 / max(1, self._num_steps_seen - 1))
        self._step_s = step_s if self._step_s is None else self._step_s + share * (step_s - self._step_s)
        if self._is_due("training", report.step + 1, report.num_steps):
            self._show_step(report, self._step_s)

    def _show_step(self, report: StepReport, step_s: float) -> None:
        done, total = report.step + 1, report.num_steps
        left_s = report.left_s or 0.0
        if total is None:
            # How many steps there will be is not known; at this speed, so many.
            total = done + math.ceil(left_s / max(step_s, 1e-9))
        else:
            left_s = (total - done) * step_s
        left = f"{duration_text(left_s)} left" if left_s else "done"
        speed, loss, memory = self._speed(report, step_s), f"loss {report.loss:.4f}", self._memory(report)
        if self._live:
            self._show("training", done, total, left, f"{speed}  {loss}  {memory}")
            return
        # The peak seldom grows: a line of a log file stays short without it.
        grown, self._memory_shown = memory != self._memory_shown, memory
        self._show("training", done, total, "  ".join([speed, loss, left, *([memory] if grown else [])]))

    def _speed(self, report: StepReport, step_s: float) -> str:
        """Measured, and as planned."""
        steps_s = [max(step_s, 1e-9), *([] if self._planned_step_s is None else [self._planned_step_s])]
        (measured, *planned), unit = rates_text([report.samples_per_step / seconds for seconds in steps_s], "sample")
        return f"{measured} {unit}{self._planned(planned)}"

    def _memory(self, report: StepReport) -> str:
        peak_bytes = report.peak_bytes
        if peak_bytes is None:
            # Asked for here, because it imports torch.
            self._peak_bytes = self._peak_bytes or peak_memory()
            peak_bytes = self._peak_bytes()
        planned = [] if self._estimated_bytes is None else [memory_text(self._estimated_bytes)]
        return f"peak {memory_text(peak_bytes)}{self._planned(planned)}"

    @staticmethod
    def _planned(texts: list[str]) -> str:
        return f" ({texts[0]} planned)" if texts else ""

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        parts = [f"After step {step}:"]
        if held_out_loss is not None:
            parts.append(f"held-out loss {held_out_loss:.4f}")
        if samples:
            parts.append(f"{len(samples)} sample{'s' if len(samples) > 1 else ''} in {samples[0].parent}")
        if len(parts) > 1:
            self.message(" ".join([parts[0], ", ".join(parts[1:])]))

    def _is_due(self, what: str, done: int, total: int | None) -> bool:
        """Asked for every step, so nothing is put into words before it says yes."""
        now_s = self._now()
        if self._live:
            is_due = what != self._what or done == total or now_s - self._last_shown_s >= _DRAW_EVERY_S
        else:
            is_last = done == total and what == "training"
            every_s = _SAME_LOG_LINE_EVERY_S if (what, done) == self._logged else _LOG_LINE_EVERY_S
            is_due = is_last or now_s - self._last_shown_s >= every_s
        if is_due:
            self._logged = (what, done)
            self._last_shown_s = now_s
        return is_due

    def _show(self, what: str, done: int, total: int, first: str, second: str = "") -> None:
        """`second` has a line of its own on a terminal that is too narrow for both."""
        self._what = what
        if not self._live:
            self.message(f"{what}{f' {done}/{total}' if total else ''}  {first}".rstrip())
            return
        if not self._line.is_started:
            # Not before there is something to show: a mistake in the command is printed without it.
            self._line.start()
        bar = _bar(what, done, total, is_ascii=self.console.options.ascii_only) if total else Text(what)
        whole = Text.assemble(bar, f" {first}  {second}".rstrip())
        if second and whole.cell_len > self.console.width:
            whole = Text.assemble(bar, f" {first}\n  {second}")
        whole.no_wrap, whole.overflow = True, "ellipsis"
        self._line.update(whole, refresh=True)


def _bar(what: str, done: int, total: int, *, is_ascii: bool) -> Text:
    filled = round(_BAR_WIDTH * min(1.0, done / max(1, total)))
    # Two letters, because there may be no colours.
    made, left = "#." if is_ascii else "━─"
    return Text.assemble(
        f"{what} ",
        (made * filled, "green"),
        (left * (_BAR_WIDTH - filled), "bright_black"),
        (f" {done}/{total}", "green"),
    )
