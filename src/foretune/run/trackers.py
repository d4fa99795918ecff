"""Sinks that other tools read, fed with what an observer hears."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from foretune.core.errors import MissingExtra
from foretune.core.registry import Registry
from foretune.run.observer import Observer, StepReport


class TensorBoard(Observer):
    """Scalars and sample images in the run directory's `tensorboard/`."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("track: [tensorboard]", "tensorboard") from error
        self._writer: Any = SummaryWriter(str(directory / "tensorboard"))

    def stepped(self, report: StepReport) -> None:
        step = report.step + 1
        self._writer.add_scalar("train/loss", report.loss, step)
        self._writer.add_scalar("train/lr", report.lr, step)
        self._writer.add_scalar("train/step_s", report.step_s, step)
        if report.grad_norm is not None:
            self._writer.add_scalar("train/grad_norm", report.grad_norm, step)

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        if held_out_loss is not None:
            self._writer.add_scalar("validate/held_out_loss", held_out_loss, step)
        for index, path in enumerate(samples):
            pixels = np.asarray(Image.open(path).convert("RGB"))
            self._writer.add_image(f"samples/{index}", pixels, step, dataformats="HWC")
        self._writer.flush()

    def ended(self) -> None:
        self._writer.close()


TRACKERS: Registry[type[TensorBoard]] = Registry("tracker", {"tensorboard": "foretune.run.trackers:TensorBoard"})
