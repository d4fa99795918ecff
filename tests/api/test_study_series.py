"""A series from its file to its page: runs and inference are measured once, figures are drawn beside plans."""

import csv
from pathlib import Path
from typing import Any

import pytest

from foretune.api.study_series import SeriesOutcome, _trained_rank, study_series
from foretune.choices.study_series import SeriesFile
from foretune.core.errors import ExperimentErrors
from foretune.core.observer import Observer

SERIES = """
question: Which precision trains faster?
shared:
  fixtures: {model: tiny-ddpm}
  experiment:
    method: {kind: full}
    data: {kind: shapes, num_samples: 8, resolution: 32}
    train: {batch_size: 2, precision: fp32}
    parallel: {device: cpu, threads: 1}
parts:
  precision:
    title: Is bf16 faster?
    authors_found: It is.
    study:
      protocol: speed
      steps: 3
      profiled_steps: 2
      seeds: [0]
      synthetic_data: true
      epoch_samples: 100
      configurations: {fp32: {}, bf16: {train.precision: bf16}}
  inference:
    title: Is it faster in inference?
    inference: {steps: 3, repeat: 1, images: 1, inference_steps: 2, variants: {plain: {}, bf16: {precision: bf16}}}
forecast:
  on: [rtx-4090]
  experiment:
    model: ddpm-cifar10
    method: {kind: full}
    data: {kind: cifar10, path: cifar-10, resolution: 32}
    train: {batch_size: 128, steps: 10}
figures:
  epoch: {part: precision, show: [time for, peak memory], title: Time of an epoch}
  operators: {part: precision, kind: operators, title: The longest operators}
  stages: {part: precision, kind: stages, title: Stages of a step}
  inference: {part: inference, show: [image-steps/s, psnr to], title: Speed and likeness}
quick:
  parts: {precision: {study: {configurations!: {fp32: {}}}}}
"""


class Recording(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def made(folder: Path, observer: Observer | None = None) -> SeriesOutcome:
    file = folder / "precision-series.yaml"
    file.write_text(SERIES, encoding="utf-8")
    return study_series(file, studies=folder / "studies", observer=observer)


@pytest.mark.slow
def test_from_the_file_to_the_page_and_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = made(tmp_path)
    assert first.problems == {}
    names = {file.stem for file in first.figures.glob("*.png")}
    assert names == {"epoch", "operators", "stages", "inference"}
    page, markdown = first.page.read_text(encoding="utf-8"), (first.path / "report.md").read_text(encoding="utf-8")
    for words in ("Which precision trains faster?", "Is bf16 faster?", "It is.", "Measured with one repeat: no claim."):
        assert words in page
        assert words.rstrip("?.") in markdown
    assert page.count("<img") == len(names)
    (answer, *_) = first.answer.conclusion
    assert answer.startswith("Speed (one seed, no claim): ")
    assert page.index(answer) < page.index("It is."), "the answer stands first"
    with (first.figures / "epoch.csv").open(encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    sources = {(row["source"], row["configuration"]) for row in rows if row["quantity"].startswith("time for")}
    planned = "forecast: ddpm-cifar10 on rtx-4090"
    assert sources == {("measured here", "fp32"), ("measured here", "bf16"), (planned, "fp32"), (planned, "bf16")}
    assert all(float(row["value"]) > 0 for row in rows)
    inference = (first.figures / "inference.csv").read_text(encoding="utf-8")
    assert "psnr to plain, dB" in inference
    observer = Recording()
    made(tmp_path, observer)
    assert any(message.startswith("2 of 2 runs were there already") for message in observer.messages)
    assert (first.figures / "inference.csv").read_text(encoding="utf-8") == inference, "nothing is measured again"


def test_every_mistake_of_a_series_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "question: Why?\n"
        "parts:\n  a: {title: A, study: {protocl: speed}}\n  b: {title: B}\n"
        "  c: {title: C, inference: {trained_by: d, variants: {plain: {}}}}\n"
        "figures: {one: {part: z, title: Z, show: [samples/s]}}\n",
        encoding="utf-8",
    )
    with pytest.raises(ExperimentErrors) as mistakes:
        study_series(file, studies=tmp_path)
    for words in ("no key protocl", "needs either study or inference", "there is no part d before it", "no part z"):
        assert words in str(mistakes.value)
    assert not list(tmp_path.glob("wrong*/")), "nothing was begun"


@pytest.mark.parametrize(
    ("experiment", "changes", "rank"),
    [
        ({}, {"method.kind": "lora", "method.rank": 8}, 8),
        ({"method": {"kind": "lora", "rank": 4}}, {}, 4),
        ({"method": {"kind": "rslora"}}, {"train.precision": "bf16"}, 16),
        ({"method": {"kind": "full"}}, {}, None),
    ],
)
def test_the_trained_rank_is_that_of_the_merged_experiment(
    experiment: dict[str, Any], changes: dict[str, Any], rank: int | None, tmp_path: Path
) -> None:
    study = {"protocol": "convergence", "steps": 4, "configurations": {"one": changes, "other": {"method.rank": 2}}}
    inference = {"title": "Sampled", "inference": {"trained_by": "run", "variants": {"plain": {}}}}
    series = SeriesFile.model_validate(
        {
            "question": "Why?",
            "shared": {"experiment": {"model": "m", **experiment}},
            "parts": {"run": {"title": "Trained", "study": study}, "inference": inference},
            "figures": {"one": {"part": "inference", "show": ["image-steps/s"], "title": "Speed"}},
        }
    )
    assert _trained_rank(series, "run", tmp_path) == rank
