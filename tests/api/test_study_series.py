"""A series from its file to its page: runs and inference are measured once, figures are drawn beside plans."""

import csv
from pathlib import Path
from typing import Any

import pytest

from foretune.api import study_series as module
from foretune.api.study_series import SeriesOutcome, _trained_rank, study_series
from foretune.choices.study_series import SeriesFile
from foretune.config.study_files import StudyAsked
from foretune.core.errors import ExperimentErrors, UserError
from foretune.core.observer import Observer
from tests.analyse.made_studies import make_part

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
    # Runs under the profiler do not count for speed: this is that of inference.
    assert answer.startswith("Speed (one repeat, no claim): ")
    assert "denoised" in answer
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


TWO_PARTS = """
question: Which is faster?
shared:
  seeds: [0, 1, 2]
  steps: 5
  experiment: experiment.yaml
  configurations: {one: {parallel.threads: 1}, two: {parallel.threads: 2}}
parts:
  first: {title: First, study: {protocol: convergence}}
  second: {title: Second, study: {protocol: equal-steps}}
figures:
  one: {part: first, kind: curves, title: Losses}
  two: {part: second, show: [training], title: Speed}
"""


class Made:
    """Stands in for the runs: writes those of equal steps, and refuses the part named `fails`."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.heard = fails, list[StudyAsked]()

    def __call__(self, asked: StudyAsked, studies: Path, *_: object) -> tuple[()]:
        self.heard.append(asked)
        if asked.name == self.fails:
            raise UserError("a reason.")
        for part in asked.parts:
            make_part(studies, part.configuration, part.seed, name=asked.name, protocol=part.protocol, order=part.order)
        return ()


@pytest.fixture
def series(tmp_path: Path) -> Path:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "experiment.yaml").write_text("{model: flux.1-dev, data: {kind: shapes}, parallel: {device: cpu}}")
    (folder / "two.yaml").write_text(TWO_PARTS)
    return folder / "two.yaml"


def test_a_part_that_fails_leaves_the_others_and_the_page(
    tmp_path: Path, series: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_study_parts", Made(fails="first"))
    experiment = "{model: ddpm-cifar10, data: {kind: shapes, resolution: 32}, train: {steps: 5}}"
    series.write_text(TWO_PARTS + f"forecast: {{on: [l4], experiment: {experiment}}}\n")
    found = study_series(series, studies=tmp_path / "studies")
    assert found.problems == {"first": "a reason."}
    page = (found.path / "report.md").read_text(encoding="utf-8")
    assert "- Failed: a reason." in page
    assert "Which is faster?" in page
    assert "Forecasts are for ddpm-cifar10 at 32 px, where a configuration does not change that." in page
    assert {file.stem for file in found.figures.glob("*.png")} == {"two"}


def test_mistakes_of_all_parts_are_reported_before_the_first_is_run(
    tmp_path: Path, series: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made()
    monkeypatch.setattr(module, "run_study_parts", made)
    later = (
        "  third: {title: T, study: {protocol: equal-time}}\n"
        "  fourth: {title: F, inference: {variants: {a: {precison: fp32}}}}\n"
    )
    series.write_text(TWO_PARTS.replace("figures:", f"{later}figures:"))
    with pytest.raises(ExperimentErrors) as mistakes:
        study_series(series, studies=tmp_path / "studies")
    for words in ("protocol equal-time needs seconds", "There is no setting of the variant a named 'precison'"):
        assert words in str(mistakes.value)
    assert made.heard == []
    series.write_text(TWO_PARTS)
    study_series(series, studies=tmp_path / "studies")
    made.heard.clear()
    series.write_text(TWO_PARTS.replace("protocol: equal-steps}", "protocol: equal-steps, steps: 7}"))
    with pytest.raises(UserError, match=r"train\.steps: there 60, now 7"):
        study_series(series, studies=tmp_path / "studies")
    assert made.heard == [], "runs of another file are found before the first part is run, too"


def test_names_sizes_and_models_have_folders_of_their_own_and_the_page_names_its_command(
    tmp_path: Path, series: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_study_parts", Made())
    monkeypatch.setattr(module, "_reported", lambda _, __, ___, folder, command, ____: (folder.name, command))
    series.write_text(TWO_PARTS + "quick: {shared: {seeds: [0, 1, 2]}}\n")
    given: dict[str, dict[str, Any]] = {
        "two": {},
        "two-quick": {"size": "quick"},
        "two-quick-flux.1-schnell": {"size": "quick", "model": "flux.1-schnell"},
        "again": {"name": "again", "jobs": 2, "options": {"partition": "my gpu"}},
    }
    place = f"--studies '{tmp_path}/my studies'"
    found: list[Any] = [study_series(series, studies=tmp_path / "my studies", **options) for options in given.values()]
    assert [name for name, _ in found] == list(given)
    assert [command.replace(str(series), "FILE") for _, command in found] == [
        f"foretune study FILE {place}",
        f"foretune study FILE --quick {place}",
        f"foretune study FILE --quick --model flux.1-schnell {place}",
        f"foretune study FILE --name again --jobs 2 {place} --option 'partition=my gpu'",
    ]
    with pytest.raises(UserError, match="cannot name a study"):
        study_series(series, studies=tmp_path / "studies", name="../../out")


def test_a_forecast_that_cannot_be_read_is_a_mistake_of_the_file(tmp_path: Path, series: Path) -> None:
    forecast = "forecast: {on: [l4], experiment: {model: flux.1-dev}}\n"
    text = TWO_PARTS.replace("title: Second,", "title: Second, forecast: {onn: [l4]},") + forecast
    series.write_text(text)
    with pytest.raises(ExperimentErrors, match=r"parts\.second\.forecast: .*onn"):
        study_series(series, studies=tmp_path / "studies")
