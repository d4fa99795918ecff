"""Benches of inference as they lie on the disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.choices.inference import MeasuredForm, form_of
from foretune.core.errors import UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_json

_BENCH, _FORMAT = "bench.json", "InferenceBench"
_CHOICES = ("num_inference_steps", "image_batch_size")
_FACTS = ("model", "adapter", "device", "size_px", "num_frames", "batch_size")
_USUAL = form_of(MeasuredForm())
"""The values of fields that a stored bench lacks, because they did not exist when it was written."""


@dataclass(frozen=True, kw_only=True)
class InferenceData:
    """One bench: what was asked, where, and every raw time of its repeats."""

    path: Path
    asked: dict[str, Any]
    """Model, adapter, sizes and all of `InferenceForm`: what makes two benches comparable."""
    batch_size: int
    image_batch_size: int
    denoising: tuple[dict[str, Any], ...]
    """Of each repeat in a fresh process: `times_s`, peaks of memory, environment."""
    num_devices: int = 1
    """Each makes such batches at the same time."""
    imaging: tuple[dict[str, Any], ...]
    """The same for batches of images from captions to pixels; empty where none were made."""

    @property
    def environments(self) -> list[dict[str, Any]]:
        return [repeat["environment"] for repeat in (*self.denoising, *self.imaging)]


def inference_in(path: Path) -> list[InferenceData]:
    """Every bench of inference at or below a path, in the order of their names; none where there is none."""
    if not path.is_dir():
        return []
    files = [path / _BENCH] if (path / _BENCH).is_file() else sorted(path.rglob(_BENCH))
    return [found for file in files if (found := _read(file)) is not None]


def _read(file: Path) -> InferenceData | None:
    """None for a bench of training."""
    try:
        content = read_json(file, MOST_JSON_BYTES, within=file.parent)
        if content["format"] != _FORMAT:
            return None
        choices = content["choices"]
        form = {name: choices.get(name, usual) for name, usual in _USUAL.items()}
        return InferenceData(
            path=file.parent,
            # The batch among the facts is the measured one, which may be smaller than the requested one.
            asked={
                **form,
                **{name: content.get(name) for name in _FACTS},
                **{name: choices[name] for name in _CHOICES},
            },
            batch_size=int(content["batch_size"]),
            image_batch_size=int(choices["image_batch_size"]),
            num_devices=int(form["devices"]),
            denoising=tuple(content["denoising"]),
            imaging=tuple(content["imaging"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read: {type(error).__name__}: {error}.") from error


def times_of(repeats: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Raw times of each repeat."""
    return [[float(time_s) for time_s in repeat["times_s"]] for repeat in repeats]
