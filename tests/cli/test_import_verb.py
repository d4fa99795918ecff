"""`foretune import` and `foretune plan` of another trainer's configuration, as one types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretune import import_config
from foretune.config import read_experiment
from tests.cli.conftest import Foretune
from tests.config.from_trainers.samples import SAMPLES

BY_NAME = {sample.name: sample for sample in SAMPLES}
ONLY_PLANNED = ("simpletuner-hunyuan", "simpletuner-lokr", "diffusers-cogvideox")
SDXL = BY_NAME["simpletuner-sdxl"]


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ONLY_PLANNED])
def test_what_is_written_is_a_valid_experiment(name: str, tmp_path: Path) -> None:
    imported = import_config(BY_NAME[name].write(tmp_path), tmp_path / "experiment.yaml")
    asked = read_experiment(tmp_path / "experiment.yaml")
    assert asked.experiment.model == imported.experiment["model"]
    comments = [line for line in imported.path.read_text().splitlines() if line.startswith("#   ")]
    for key in imported.unsupported:
        assert sum(line.startswith(f"#   {key}: ") for line in comments) == 1, key


@pytest.mark.parametrize("name", ONLY_PLANNED)
def test_a_model_that_can_only_be_planned_is_not_imported(name: str, foretune: Foretune, tmp_path: Path) -> None:
    file = BY_NAME[name].write(tmp_path)
    answer = foretune("import", file.name)
    assert answer.returncode == 2
    assert "cannot be trained yet" in answer.stderr
    assert not (tmp_path / "experiment.yaml").exists()


def test_assumptions_and_keys_without_an_equivalent_are_reported(foretune: Foretune, tmp_path: Path) -> None:
    file = SDXL.write(tmp_path, {"snr_gamma": 5, "no_such_key": 1})
    answer = foretune("import", file.name, "-o", "mine.yaml")
    assert answer.returncode == 0
    assert answer.stdout == "Wrote mine.yaml, from a configuration of SimpleTuner. Next: foretune plan mine.yaml\n"
    assert "Assumed: train_batch_size is not set: 4, its default in SimpleTuner\n" in answer.stderr
    assert "Warning: no equivalent here: snr_gamma, no_such_key. The comments say what that means.\n" in answer.stderr
    text = (tmp_path / "mine.yaml").read_text()
    assert text.startswith(
        "# From sdxl.json, a configuration of SimpleTuner.\n# Start it with: foretune train mine.yaml."
    )
    assert "# No equivalent:\n#   snr_gamma: 5 -> it is not supported\n# Unknown keys:\n#   no_such_key: 1 -> " in text


def test_the_steps_of_a_checkpoint_are_translated_and_not_called_irrelevant(foretune: Foretune, tmp_path: Path) -> None:
    file = SDXL.write(tmp_path, {})
    answer = foretune("import", file.name, "-o", "mine.yaml")
    assert answer.returncode == 0, answer.stderr
    translated, _, irrelevant = (tmp_path / "mine.yaml").read_text().partition("# Does not matter")
    assert "#   checkpointing_steps: 250 -> save.every=250\n" in translated
    assert "save: {every: 250" in translated
    assert "checkpoint" not in irrelevant


def test_an_experiment_is_not_overwritten_unasked(foretune: Foretune, tmp_path: Path) -> None:
    file = SDXL.write(tmp_path)
    (tmp_path / "experiment.yaml").write_text("mine\n")
    answer = foretune("import", file.name)
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: experiment.yaml exists already. Run: foretune import sdxl.json --force")
    assert (tmp_path / "experiment.yaml").read_text() == "mine\n"
    assert foretune("import", file.name, "--force").returncode == 0
    assert (tmp_path / "experiment.yaml").read_text().startswith("# From sdxl.json")


def test_a_file_that_is_refused_leaves_nothing_behind(foretune: Foretune, tmp_path: Path) -> None:
    file = SDXL.write(tmp_path, {"controlnet": True})
    answer = foretune("import", file.name)
    assert answer.returncode == 2
    assert "1. controlnet: ControlNets cannot be trained here" in answer.stderr
    assert not (tmp_path / "experiment.yaml").exists()
    assert "does not exist" in foretune("import", "nowhere.toml").stderr


def test_secrets_and_control_characters_stay_out(foretune: Foretune, tmp_path: Path) -> None:
    sample = BY_NAME["sd-scripts-sdxl"]
    file = sample.write(tmp_path, {"wandb_api_key": "abc123secret", "training_comment": "a\u001b[31mb\u202e"})
    answer = foretune("import", file.name)
    assert answer.returncode == 0
    text = (tmp_path / "experiment.yaml").read_text()
    assert "abc123secret" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_users_model_comes_first(foretune: Foretune, tmp_path: Path) -> None:
    file = BY_NAME["sd-scripts-sdxl"].write(tmp_path)
    assert foretune("import", file.name, "--model", "sd1.5").returncode == 0
    assert read_experiment(tmp_path / "experiment.yaml").experiment.model == "sd1.5-unet"


def planned(foretune: Foretune, *arguments: str) -> list[dict[str, Any]]:
    answer = foretune("plan", *arguments, "--on", "rtx-4090", "--json")
    assert answer.returncode == 0, answer.stderr
    plans: list[dict[str, Any]] = json.loads(answer.stdout)
    return plans


def test_a_plan_says_whose_training_it_is(foretune: Foretune, tmp_path: Path) -> None:
    file = SDXL.write(tmp_path, {"snr_gamma": 5, "no_such_key": 1})
    answer = foretune("plan", file.name, "--on", "rtx-4090")
    assert answer.returncode == 0
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("sdxl-unet: full fine-tuning, bf16, bf16 trained weights, adamw8bit")
    assert lines[1] == "As SimpleTuner runs sdxl.json (compared with its published peaks)."
    assert "Assumed: train_batch_size is not set: 4, its default in SimpleTuner" in lines
    assert "No equivalent: snr_gamma" in lines
    assert "Unknown keys: no_such_key" in lines
    assert "Not counted: clipping by value, which is planned as clipping by norm" in lines


def test_a_plan_keeps_the_gradients_that_the_program_keeps(foretune: Foretune, tmp_path: Path) -> None:
    """SimpleTuner fills gradients with zeros: they are there in each pass, as where several passes make a step."""
    file = SDXL.write(tmp_path, {"train_batch_size": 8})
    import_config(file, tmp_path / "ours.yaml")
    (theirs,), (ours,) = planned(foretune, file.name), planned(foretune, "ours.yaml")
    (accumulated,) = planned(foretune, "ours.yaml", "train.gradient_accumulation=2")
    assert theirs["allocated_bytes"] == accumulated["allocated_bytes"] > ours["allocated_bytes"]


def test_changes_apply_and_the_model_can_be_named(foretune: Foretune, tmp_path: Path) -> None:
    file = BY_NAME["sd-scripts-sdxl"].write(tmp_path, {"train_batch_size": 1})
    (small,) = planned(foretune, file.name)
    (large,) = planned(foretune, file.name, "train.batch_size=4")
    assert (small["sizes"]["batch_size"], large["sizes"]["batch_size"]) == (1, 4)
    (other,) = planned(foretune, file.name, "model=sd1.5", "data.resolution=512")
    assert (small["model"], other["model"]) == ("sdxl-unet", "sd1.5-unet")


def test_encoders_that_are_not_cached_stay_on_the_device(foretune: Foretune, tmp_path: Path) -> None:
    sample = BY_NAME["sd-scripts-sdxl"]
    (cached,) = planned(foretune, sample.write(tmp_path).name)
    (resident,) = planned(foretune, sample.write(tmp_path, {"cache_text_encoder_outputs": False}).name)
    assert resident["allocated_bytes"] > cached["allocated_bytes"] + 2**30


def test_a_plan_of_a_refused_file_says_why(foretune: Foretune, tmp_path: Path) -> None:
    file = BY_NAME["onetrainer-flux"].write(tmp_path, {"training_method": "EMBEDDING"})
    answer = foretune("plan", file.name)
    assert answer.returncode == 2
    assert "textual inversion trains words, not weights" in answer.stderr
