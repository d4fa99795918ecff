"""The series of studies that come with Foretune can be read in each size, and every part has a figure."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from foretune.choices.study import StudyFile
from foretune.choices.study_series import merged, without_marks
from foretune.config.overrides import apply_overrides
from foretune.config.study_files import load_series, read_study
from foretune.studies.shipped import SHIPPED_SERIES

MODELS = {"tiny-ddpm": "ddpm-cifar10", "small-flux": "flux.1-dev", "small-sd3": "sd3-medium"}


@pytest.mark.parametrize("size", ["small", "quick", "full"])
@pytest.mark.parametrize("name", SHIPPED_SERIES)
def test_every_part_is_a_study(name: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at full size, where models and data are those of the original study."""
    monkeypatch.chdir(tmp_path)
    for folder in ("images", "sargent", "cifar-10/train"):
        Path(folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(Path(folder) / "1.png")
    series = load_series(SHIPPED_SERIES[name], size)  # type: ignore[arg-type]
    for part, content in series.parts.items():
        if content.study is None:
            continue
        study = series.study_of(part)
        fixtures = study.pop("fixtures", None) or {}
        changes = {"model": MODELS[fixtures["model"]]} if fixtures.get("model") else {}
        if fixtures.get("images"):
            changes["data.path"] = "images"
        assert not (size == "full" and fixtures), "the authors' model and data, not stand-ins"
        file = tmp_path / f"{part}.yaml"
        file.write_text(yaml.safe_dump(study), encoding="utf-8")
        asked = read_study(file, name=part, changes=changes)
        assert len(asked.parts) == len(asked.file.compared) * len(asked.file.settings or "1") * len(asked.file.seeds)


@pytest.mark.parametrize("name", SHIPPED_SERIES)
def test_each_part_has_a_figure(name: str) -> None:
    series = load_series(SHIPPED_SERIES[name], "small")
    assert {figure.part for figure in series.figures.values()} == set(series.parts)


DECIDE_SPEED = (
    "data.resolution", "data.max_text_tokens", "train.batch_size", "train.precision", "train.weight_dtype",
    "method.kind", "method.rank", "quantize.denoiser", "levers.gradient_checkpointing",
)  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED_SERIES)
def test_a_forecast_and_the_measurement_of_the_same_name_have_the_same_settings(name: str) -> None:
    """At full size; what neither of them sets is the same default."""
    series = load_series(SHIPPED_SERIES[name], "full")
    for part, content in series.parts.items():
        forecast = series.forecast_of(part)
        if content.study is None or forecast is None:
            continue
        study = StudyFile.model_validate(series.study_of(part))
        assert isinstance(study.experiment, dict)
        planned, planned_settings = forecast.configurations or study.compared, forecast.settings or study.settings
        for configuration in planned.keys() & study.compared.keys():
            for setting in (planned_settings.keys() & study.settings.keys()) or [""]:
                sides = []
                for base, compared, settings in (
                    (study.experiment, study.compared, study.settings),
                    (forecast.experiment, planned, planned_settings),
                ):
                    changes = {**settings.get(setting, {}), **compared[configuration]}
                    whole = apply_overrides(base, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
                    sides.append([_value(whole, key) for key in DECIDE_SPEED])
                assert sides[0] == sides[1], f"{part}, {configuration}, {setting}: {DECIDE_SPEED}"


DEFAULTS = {"train.weight_dtype": "fp32", "quantize.denoiser": "none"}


def _value(experiment: dict[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    value = experiment.get(section, {}).get(name)
    return DEFAULTS.get(key) if value is None else value


def test_changes_are_merged_section_by_section_in_the_order_of_the_file() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": {"z": 3}, "c": 4}
    assert merged(base, {"a": {"y": 5}}) == {"a": {"x": 1, "y": 5}, "b": {"z": 3}, "c": 4}
    replaced = merged(base, {"a!": {"y": 5}})
    assert list(replaced) == ["a!", "b", "c"]
    # What replaces a section is changed further by the next changes, and still replaces what comes before.
    further = merged(replaced, {"a": {"w": 6}})
    assert without_marks(merged({"a": {"v": 7}}, further)) == {"a": {"y": 5, "w": 6}, "b": {"z": 3}, "c": 4}
    assert base == {"a": {"x": 1, "y": 2}, "b": {"z": 3}, "c": 4}, "the base stays as it is"
