"""trackio: a local database that `trackio show` draws. It stays on this machine."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from foretune.core.errors import MissingExtra
from foretune.core.observer import StepReport
from foretune.training.trackers.tracker import Tracker, settings_of, step_scalars


class TrackioBoard(Tracker):
    """A run in the project that is named like the experiment, in trackio's own folder (TRACKIO_DIR)."""

    def __init__(self, directory: Path) -> None:
        try:
            import trackio
        except ImportError as error:
            raise MissingExtra("track: [trackio]", "trackio") from error
        self._trackio: Any = trackio
        project, run_id, settings = settings_of(directory)
        # Its greeting would tear our progress apart, and what it would read of the machine is read already.
        with redirect_stdout(io.StringIO()):
            self._run: Any = trackio.init(
                project=project,
                name=run_id,
                config=settings,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def stepped(self, report: StepReport) -> None:
        self._run.log(step_scalars(report), step=report.step + 1)

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        metrics: dict[str, Any] = {} if held_out_loss is None else {"validate/held_out_loss": held_out_loss}
        metrics |= {f"samples/{index}": self._trackio.Image(str(path)) for index, path in enumerate(samples)}
        if metrics:
            self._run.log(metrics, step=step)

    def ended(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()
