"""From a file and overrides to a checked Experiment."""

from pathlib import Path
from typing import Any

import pytest

from foretune.catalog import TRAINABLE
from foretune.choices.experiment import Experiment
from foretune.choices.method import Full, Lora
from foretune.config import Asked, read_experiment
from foretune.config.reading import understand
from foretune.config.yaml_files import parse
from foretune.core.errors import ExperimentErrors, UserError
from foretune.core.values import WrongFormat
from foretune.record.run_directory import RunDirectory

# What users are promised to be able to write.
PROMISED = """\
model: flux.1-dev                # a catalogue name, a hub id, or a local folder in the diffusers layout
method: {kind: lora, rank: 16}   # or {kind: full}
data: {kind: folder, path: ./paintings, resolution: 1024, cache_dir: ./cache}
train: {steps: 1000, batch_size: 1, gradient_accumulation: 4, precision: bf16, seed: 0}   # or epochs
optimizer: {kind: adamw, lr: 1.0e-4, schedule: cosine, warmup_steps: 100}
levers: {gradient_checkpointing: 1.0, cache_latents: true, cache_text: true}
validate: {every: 250, prompts: ["a harbour at dusk"], num_inference_steps: 28}
save: {every: 250, keep: 3}
parallel: {devices: 1}           # sharding and more come later
track: [tensorboard]
"""
SHORT = "model: flux.1-dev\nmethod: {kind: lora, rank: 16}\ndata: {kind: shapes}\ntrain: {steps: 10}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str, *overrides: str, name: str = "x.yaml") -> Asked:
    Path(name).write_text(text, encoding="utf-8")
    return read_experiment(Path(name), overrides)


def problems(text: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ExperimentErrors) as caught:
        read(text, *overrides)
    return caught.value.problems


def test_the_promised_shape_is_accepted() -> None:
    asked = read(PROMISED, name="paintings.yaml")
    experiment = asked.experiment
    assert asked.warnings == ()
    assert (asked.model.kind, asked.model.family) == ("catalogue", "flux")
    assert experiment.name == "paintings"
    assert experiment.method == Lora(rank=16)
    assert experiment.data.kind == "folder"
    assert (experiment.data.path, experiment.data.resolution) == ("./paintings", 1024)
    assert (experiment.train.steps, experiment.train.gradient_accumulation) == (1000, 4)
    assert (experiment.optimizer.lr, experiment.optimizer.schedule) == (1e-4, "cosine")
    assert experiment.levers.gradient_checkpointing == 1.0
    assert experiment.validation.prompts == ("a harbour at dusk",)
    assert (experiment.save.every, experiment.save.keep) == (250, 3)
    assert experiment.track == ("tensorboard",)


def test_as_asked_holds_what_was_asked_and_nothing_else() -> None:
    asked = read(SHORT, "train.steps=20", "optimizer.lr=1e-3")
    assert asked.as_asked == {
        "model": "flux.1-dev",
        "method": {"kind": "lora", "rank": 16},
        "data": {"kind": "shapes"},
        "train": {"steps": 20},
        "optimizer": {"lr": 1e-3},
    }
    assert (asked.experiment.train.steps, asked.experiment.optimizer.lr) == (20, 1e-3)


def test_what_was_resolved_reads_back_as_the_same_experiment() -> None:
    asked = read(PROMISED)
    assert Experiment.from_mapping(asked.experiment.to_mapping()) == asked.experiment
    assert understand(asked.experiment.to_mapping(), source="resolved").experiment == asked.experiment


def test_what_a_run_keeps_can_be_started_again_with_changes() -> None:
    """Under its own name, with its defaults, and with overrides like any other file."""
    first = read(PROMISED, name="paintings.yaml")
    run = RunDirectory.create(Path("runs"), first.experiment.name)
    run.write_experiment(first.as_asked, first.experiment, {})
    kept = run.path / "experiment.yaml"
    assert read_experiment(kept).experiment == first.experiment
    assert read_experiment(kept).experiment.name == "paintings"
    changed = read_experiment(kept, ["train.seed=7"]).experiment
    assert changed.train.seed == 7
    assert changed == read(PROMISED, "train.seed=7", name="paintings.yaml").experiment


def test_a_resolved_experiment_of_a_newer_release_is_refused() -> None:
    stored = read(SHORT).experiment.to_mapping()
    with pytest.raises(WrongFormat, match="pip install --upgrade foretune"):
        understand({**stored, "format_version": 99}, source="resolved")


def test_a_method_can_be_changed_on_the_command_line() -> None:
    assert read(SHORT, "method.kind=full").experiment.method == Full()
    assert read(SHORT, "method.rank=4").experiment.method == Lora(rank=4)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("optimizer.lr=1e-4", "optimizer", "lr", 1e-4),
        ("optimizer.betas=[0.8, 0.9]", "optimizer", "betas", (0.8, 0.9)),
        ("train.max_grad_norm=null", "train", "max_grad_norm", None),
        ("train.loss_scaling=off", "train", "loss_scaling", "off"),
        ("levers.cache_text=no", "levers", "cache_text", False),
        ("validate.prompts=[a cat, 'a dog, too']", "validation", "prompts", ("a cat", "a dog, too")),
        ("parallel.device=cpu", "parallel", "device", "cpu"),
    ],
)
def test_overrides(override: str, section: str, key: str, value: Any) -> None:
    assert getattr(getattr(read(SHORT, override).experiment, section), key) == value


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("flux-lora.yaml", "flux-lora"),
        ("my run (2).yml", "my-run--2-"),
        ("bär.yaml", "b-r"),
        ("_x.yaml", "x"),
        ("---.yaml", "experiment"),
        (f"{'long' * 50}.yaml", "long" * 25),
    ],
)
def test_a_file_gives_its_name(file: str, name: str) -> None:
    assert read(SHORT, name=file).experiment.name == name


def test_a_name_that_is_given_stays() -> None:
    assert read(SHORT + "name: mine\n").experiment.name == "mine"
    assert read(SHORT, "name=mine").experiment.name == "mine"


def test_three_mistakes_are_told_at_once() -> None:
    found = problems(
        SHORT.replace("rank", "rnak").replace("steps: 10", "steps: ten").replace("flux.1-dev", "flux.1-def")
    )
    assert found == (
        "method.rnak: unknown key. Did you mean 'rank'?",
        "train.steps: should be a whole number (found 'ten')",
        "model: There is no model in the catalogue named 'flux.1-def'. Did you mean 'flux.1-dev'?",
    )


def test_a_model_by_another_name_is_the_same_experiment() -> None:
    plain, typed = (
        understand(parse(SHORT.replace("flux.1-dev", name)), source="it") for name in ("flux.1-dev", "FLUX1-dev")
    )
    assert typed.experiment == plain.experiment
    assert typed.warnings == ("model: 'FLUX1-dev' resolved to flux.1-dev",)
    assert typed.as_asked["model"] == "FLUX1-dev"


def test_an_ambiguous_model_is_one_mistake_of_several() -> None:
    found = problems(SHORT.replace("flux.1-dev", "flux").replace("rank", "rnak"))
    assert len(found) == 2
    assert found[1].startswith("model: 'flux' fits 3 models: flux.1-dev, flux.1-schnell, flux.2-dev.")


@pytest.mark.parametrize("model", ["", "null", "[a]", "5"])
def test_a_model_that_is_no_name_is_one_mistake(model: str) -> None:
    assert len(problems(SHORT.replace("flux.1-dev", model or "''"))) == 1


def test_a_model_folder_that_is_not_there() -> None:
    assert problems(SHORT, "model=./mine") == (
        "model: The model folder ./mine does not exist. Run: foretune list models",
    )


def test_a_family_that_cannot_be_trained_yet() -> None:
    (problem,) = problems(SHORT, "model=flux.2-dev")
    assert problem == (
        f"model: models of the family 'flux2' cannot be trained yet. Trainable: {', '.join(sorted(TRAINABLE))}."
    )


def test_fp16_without_scaling_is_refused_with_the_alternative() -> None:
    (problem,) = problems(SHORT, "train.precision=fp16", "train.loss_scaling=off")
    assert problem.startswith("train.loss_scaling: fp16 without loss scaling")
    assert "train.loss_scaling=dynamic, or train.precision=bf16" in problem
    assert read(SHORT, "train.precision=fp16").warnings == ()


def test_sharding_on_one_device_is_refused_with_the_alternative() -> None:
    (problem,) = problems(SHORT, "parallel.sharding=full")
    assert "Nearest: parallel.sharding=none, or parallel.devices=2" in problem


def test_a_distilled_base() -> None:
    full = ("model=flux.1-schnell", "method.kind=full")
    (problem,) = problems(SHORT, *full)
    for way_out in ("method.kind=lora", "flux.1-dev", "accept=[distilled-base]"):
        assert way_out in problem
    (accepted,) = read(SHORT, *full, "accept=[distilled-base]").warnings
    (adapter,) = read(SHORT, "model=flux.1-schnell").warnings
    assert accepted == adapter
    assert "distilled to few sampling steps" in adapter


def test_a_hub_id_that_is_not_known_is_taken_at_its_word() -> None:
    asked = read(SHORT, "model=someone/something@v2")
    assert (asked.model.repo, asked.model.revision, asked.model.family) == ("someone/something", "v2", None)


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"x\.yaml cannot be read as YAML: line 5, column 1: the key 'model' stands"):
        read(SHORT + "model: sd3.5-medium\n")


def test_the_source_is_named() -> None:
    with pytest.raises(ExperimentErrors, match=r"^x\.yaml has 1 mistake:\n  1\. train\.seed: "):
        read(SHORT.replace("steps: 10", "steps: 10, seed: -1"))
    with pytest.raises(ExperimentErrors, match=r"^This command has 1 mistake:\n  1\. train\.steps: "):
        read(SHORT, "train.steps=0")


def test_mistakes_of_every_stage_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "model: flux.1-schnell\nmethod: {kind: full}\ndata: {kind: folder, path: ./nowhere}\n"
        "train: {steps: 10, bath_size: 2, seed: x}\n"
    )
    with pytest.raises(ExperimentErrors) as raised:
        read_experiment(path, needs=["data"])
    problems = raised.value.problems
    assert [problem.partition(":")[0] for problem in problems[:2]] == ["train.seed", "train.bath_size"]
    assert any("distilled" in problem for problem in problems), "what does not go together"
    assert problems[-1].startswith("data.path: there is no folder ./nowhere (looked for ")
    assert len(problems) == 4


def test_a_wrong_value_is_not_objected_to_by_its_default(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: flux.1-dev\ndata: {kind: shapes}\ntrain: {steps: 10, precision: bf61}\n")
    with pytest.raises(ExperimentErrors) as raised:
        read_experiment(path)
    assert len(raised.value.problems) == 1


def test_a_plan_needs_no_data(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: flux.1-dev\ndata: {kind: folder, path: ./nowhere}\ntrain: {steps: 10}\n")
    assert read_experiment(path).experiment.data.kind == "folder"


def test_a_size_with_a_comma() -> None:
    """In quotes or outside of braces it is one value; in braces YAML makes a key of its second half."""
    size = 'model: flux.1-dev\ntrain: {steps: 1}\ndata: {kind: shapes, resolution: "416,240"}'
    assert read(size).experiment.data.resolution == "416x240"
    assert read(size, "data.resolution=832,480").experiment.data.resolution == "832x480"
    (problem,) = problems(size.replace('"', ""))
    assert problem.endswith("in braces, a comma begins a key. A width and a height are written 416x240.")
