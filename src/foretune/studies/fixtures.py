"""Models and images that a study generates for itself, so that it runs without any files."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from foretune.choices.study import FixtureModel, StudyFixtures
from foretune.core.observer import Observer
from foretune.models.tiny import write_small_pipeline, write_tiny_pipeline

_FOLDER = "fixtures"
_SIDE_PX = 1024
"""As large as a photograph: decoding one takes about as long as a small model's step."""


def make_fixtures(fixtures: StudyFixtures, study: Path, observer: Observer) -> dict[str, Any]:
    """Generates what is not in the study's folder yet; returns the experiment's settings that name it."""
    changes: dict[str, Any] = {}
    if fixtures.model is not None:
        model = fixtures.model
        changes["model"] = _made(study / _FOLDER / model, lambda folder: _write_model(model, folder), observer)
        changes["data.cache_dir"] = str(study / _FOLDER / "cache")
    if fixtures.images is not None:
        num = fixtures.images
        changes["data.path"] = _made(
            study / _FOLDER / f"images-{num}", lambda folder: _write_images(folder, num), observer
        )
    return changes


def _made(folder: Path, write: Callable[[Path], None], observer: Observer) -> str:
    """Writes under another name first, so that an interrupted write is not taken for the whole."""
    if not folder.is_dir():
        observer.preparing(f"making {folder.name}", 0, 1)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as partial:
            write(Path(partial) / folder.name)
            (Path(partial) / folder.name).rename(folder)
        observer.preparing(f"making {folder.name}", 1, 1)
    return str(folder)


def _write_model(name: FixtureModel, folder: Path) -> None:
    size, _, family = name.partition("-")
    (write_small_pipeline if size == "small" else write_tiny_pipeline)(family, folder)


def _write_images(folder: Path, num: int) -> None:
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True)
    ramp = np.linspace(0, 4 * np.pi, _SIDE_PX)
    for number in range(num):
        waves = np.sin(ramp * (1 + number / num))[:, None] + np.cos(ramp)[None, :]
        noise = np.random.default_rng(number).normal(0, 0.1, (_SIDE_PX, _SIDE_PX, 3))
        pixels = ((waves[..., None] / 4 + 0.5 + noise).clip(0, 1) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.jpg", quality=90)
