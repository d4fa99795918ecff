"""The sweeps that come with Foretune, from the name to the picture: two trials of each, as short as they can be."""

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune.api.sweep import sweep
from foretune.choices.sweep import combinations
from foretune.config.sweep_files import load_sweep, shortened
from foretune.sweeps.presets import SWEEP_PRESETS

pytestmark = pytest.mark.takes_turns


def with_two_trials(name: str, folder: Path) -> Path:
    """The preset, with two values of its first axis in its quick form and one of the others."""
    mapping: dict[str, Any] = yaml.safe_load(SWEEP_PRESETS[name].read_text())
    quick = mapping["quick"]
    whole = {**mapping["axes"], **quick.get("axes", {})}
    axes = {axis: given for axis, given in whole.items() if axis not in quick.get("drop", ())}
    for number, (axis, given) in enumerate(axes.items()):
        if mapping.get("strategy", {}).get("kind") == "frontier":
            axes[axis] = [1, 256]
        elif isinstance(given, dict) and "from" in given:
            axes[axis] = [given["from"], given["to"]][: 1 if number else 2]
        elif isinstance(given, dict):
            axes[axis] = dict(list(given.items())[: 1 if number else 2])
        else:
            axes[axis] = given[: 1 if number else 2]
    quick |= {"axes": axes, "steps": 2}
    if "fixtures" not in quick:
        quick["fixtures"] = {**mapping["fixtures"], "model": mapping["fixtures"]["model"].replace("small", "tiny")}
    changes = quick.setdefault("changes", {})
    if "optimizer.warmup_steps" in changes:
        changes |= {"optimizer.warmup_steps": 1, "validate.every": 2}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return path


def test_the_quick_form_of_a_preset_compiles_once_at_the_most() -> None:
    """Compiling takes one to two minutes on two cores."""
    for name, path in SWEEP_PRESETS.items():
        file = shortened(load_sweep(path))
        compiled = [point for point in combinations(file.options) if "regional" in {o.value for o in point.values()}]
        assert len(compiled) * len(file.seeds) == (name == "compile"), name


def test_convergence_compares_every_precision() -> None:
    file = load_sweep(SWEEP_PRESETS["convergence"])
    for one in (file, shortened(file)):
        assert one.axes["train.precision"] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize("name", SWEEP_PRESETS)
def test_a_preset_runs_to_its_table_its_picture_and_its_answer(name: str, tmp_path: Path) -> None:
    outcome = sweep(with_two_trials(name, tmp_path), quick=True, sweeps=tmp_path / "sweeps")
    kinds = [result.outcome.kind for result in outcome.results]
    if name == "batch-frontier":
        assert kinds in (["done", "predicted not to fit"], ["done", "out of host memory"])
        assert outcome.summary.headline.startswith("1 fits, 256 does not")
    else:
        assert kinds == ["done", "done"], outcome.problems
        objective = {"convergence": "held-out loss"}.get(name, "speed")
        assert outcome.summary.headline == f"Cannot tell which is best by {objective}: one run of each combination"
    with (outcome.path / "runs_summary.csv").open() as file:
        assert [row["outcome"] for row in csv.DictReader(file)] == kinds
    *curves, picture = sorted(outcome.path.glob("plot-*.svg"))
    text = picture.read_text()
    assert ("held-out loss" if name == "convergence" else "samples/s") in text
    assert "One run of each combination." in text
    assert [path.name for path in curves] == (["plot-loss-curves.svg"] if name == "convergence" else [])
    costs = outcome.summary.compile_costs
    assert [cost.name for cost in costs] == (["compile regional, precision fp32"] if name == "compile" else [])
