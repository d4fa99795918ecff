"""Weights & Biases. Offline unless WANDB_MODE says otherwise: nothing leaves a machine that was not asked to."""

import os
from pathlib import Path
from typing import Any

from foretune.core.errors import MissingExtra
from foretune.core.observer import StepReport
from foretune.training.trackers.tracker import Tracker, settings_of, status_of, step_scalars


class WeightsAndBiases(Tracker):
    """A run of the same id in the project that is named like the experiment.

    What the library would collect by itself (program, git, environment, console, host) is switched off: what
    describes a run is in its directory.
    """

    def __init__(self, directory: Path) -> None:
        # Read when wandb is imported: otherwise also an offline run reports its start to the library's makers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("track: [wandb]", "wandb") from error
        self._directory = directory
        self._wandb: Any = wandb
        project, run_id, settings = settings_of(directory)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        quiet = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", project),
            id=run_id,
            name=run_id,
            dir=str(directory),
            config=settings,
            mode=mode,
            # Offline there is nothing to take up: the parts of a resumed run meet when they are synchronised.
            resume="allow" if mode == "online" else None,
            settings=quiet,
        )
        # Steps are a number of ours: a resumed run repeats some, which the library's own counter does not allow.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def stepped(self, report: StepReport) -> None:
        self._run.log({"step": report.step + 1, **step_scalars(report)})

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        metrics: dict[str, Any] = {} if held_out_loss is None else {"validate/held_out_loss": held_out_loss}
        metrics |= {f"samples/{index}": self._wandb.Image(str(path)) for index, path in enumerate(samples)}
        if metrics:
            self._run.log({"step": step, **metrics})

    def ended(self) -> None:
        self._run.finish(exit_code=0 if status_of(self._directory) == "finished" else 1)
