"""Runs of a few steps on tiny models, and an observer that remembers what it heard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretune.config.reading import Asked, understand
from foretune.core.observer import Observer, StepReport
from foretune.models.locating import open_family
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from foretune.training.preparing import Prepared, prepare
from foretune.training.train import Trained, train
from tests.models.made_inputs import small_size

PROMPT = "a small red circle on blue"
METHODS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    # Alpha differs from the rank, so that whoever forgets it computes something else.
    "lora": {"kind": "lora", "rank": 4, "alpha": 10},
}


class Recording(Observer):
    """Remembers everything, in order; `on_step` is called at each step, with how many are done."""

    def __init__(self, on_step: Callable[[int], None] | None = None) -> None:
        self.on_step = on_step
        if on_step is not None:
            self.patience_s = 0.0
        self.heard: list[tuple[str, Any]] = []

    def of(self, kind: str) -> list[Any]:
        return [what for heard, what in self.heard if heard == kind]

    def message(self, text: str) -> None:
        self.heard.append(("message", text))

    def warning(self, text: str) -> None:
        self.heard.append(("warning", text))

    def preparing(self, what: str, done: int, total: int) -> None:
        self.heard.append(("preparing", (what, done, total)))

    def stepped(self, report: StepReport) -> None:
        self.heard.append(("stepped", report))
        if self.on_step is not None:
            self.on_step(report.step + 1)

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        self.heard.append(("validated", (step, held_out_loss, samples)))

    def saved(self, step: int, path: Path) -> None:
        self.heard.append(("saved", step))

    def ended(self) -> None:
        self.heard.append(("ended", None))


def of_model(folder: Path) -> dict[str, Any]:
    """Settings of the data that follow from the model: short clips, and captions of the only length it takes."""
    if not (folder / "model_index.json").is_file():
        return {}
    family = open_family(folder)
    frames = {"num_frames": small_size(family).num_frames} if family.is_video else {}
    fixed = family.text_is_fixed and not family.facts.text_is_fixed
    return {**frames, **({"max_text_tokens": None} if fixed else {})}


def short_mapping(model: Path, work: Path, method: str | dict[str, Any] = "lora", **sections: Any) -> dict[str, Any]:
    """An experiment of three steps of two samples; the keys of a section change those of the same section here.

    A section of another kind than here takes the place of the one here.
    """
    defaults: dict[str, dict[str, Any]] = {
        "method": METHODS[method] if isinstance(method, str) else method,
        "data": {
            "kind": "shapes",
            "num_samples": 20,
            "resolution": 32,
            "cache_dir": str(work / "cache"),
            "max_text_tokens": 16,
            "held_out": 0.2,
            **of_model(model),
        },
        "train": {"steps": 3, "batch_size": 2, "precision": "fp32"},
        "optimizer": {"lr": 1e-3},
        "validate": {"num_inference_steps": 2, "num_held_out": 3},
        "parallel": {"device": "cpu"},
    }
    for name in defaults.keys() & sections.keys():
        changes = sections.pop(name)
        is_other_kind = "kind" in changes and changes["kind"] != defaults[name].get("kind")
        defaults[name] = changes if is_other_kind else {**defaults[name], **changes}
    return {"name": "short", "model": str(model), **defaults, **sections}


def short_asked(model: Path, work: Path, method: str | dict[str, Any] = "lora", **sections: Any) -> Asked:
    return understand(short_mapping(model, work, method, **sections), source="short.yaml")


def short_run(
    model: Path, work: Path, method: str | dict[str, Any] = "lora", observer: Observer | None = None, **sections: Any
) -> Trained:
    """Trains; the run's directory is below `work`/runs."""
    return train(short_asked(model, work, method, **sections), work / "runs", observer or Observer())


def short_prepared(model: Path, work: Path, method: str | dict[str, Any] = "lora", **sections: Any) -> Prepared:
    """A run that could start."""
    return prepare(short_asked(model, work, method, **sections).experiment, model, Observer())


def events_of(run: RunDirectory, *kinds: str) -> list[dict[str, Any]]:
    """The events of a run, of these kinds or all."""
    return [event for event in read_events(run.events) if not kinds or event["kind"] in kinds]


def losses_of(run: RunDirectory) -> list[float]:
    return [event["loss"] for event in events_of(run, "step")]
