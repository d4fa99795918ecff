"""TensorBoard: event files in the run directory."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from foretune.core.errors import MissingExtra
from foretune.core.observer import StepReport
from foretune.training.trackers.tracker import Tracker, step_scalars


class TensorBoard(Tracker):
    """Scalars and sample images in the run directory's `tensorboard/`."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("track: [tensorboard]", "tensorboard") from error
        self._writer: Any = SummaryWriter(str(directory / "tensorboard"))

    def stepped(self, report: StepReport) -> None:
        for name, value in step_scalars(report).items():
            self._writer.add_scalar(name, value, report.step + 1)

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        if held_out_loss is not None:
            self._writer.add_scalar("validate/held_out_loss", held_out_loss, step)
        for index, path in enumerate(samples):
            pixels = np.asarray(Image.open(path).convert("RGB"))
            self._writer.add_image(f"samples/{index}", pixels, step, dataformats="HWC")
        self._writer.flush()

    def ended(self) -> None:
        self._writer.close()
