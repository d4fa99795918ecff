"""The page on the small model: its experiment is accepted, its commands run, at sizes that show no more than that."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from foretune.choices.model import resolve_model
from foretune.cli.main import main
from foretune.config.reading import understand
from tools.small_model.__main__ import parser

PAGE = (Path(__file__).parents[2] / "docs" / "small-model.md").read_text(encoding="utf-8")
(EXPERIMENT,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
SHORTER = {
    "train": shlex.split(
        "train.steps=2 train.batch_size=2 data.num_samples=8 data.held_out=0.25 validate.num_inference_steps=1"
    ),
    "evaluate": shlex.split("--num-prompts 2 --seeds 1 --steps 1 --held-out 2"),
}


def test_the_experiment_is_of_the_shipped_model() -> None:
    asked = understand(yaml.safe_load(EXPERIMENT), source="docs/small-model.md")
    assert asked.model.folder == resolve_model("foretune-shapes").folder
    assert not asked.warnings


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("framed.yaml").write_text(EXPERIMENT)
    ours = [shlex.split(command) for command in COMMANDS if command.startswith("foretune ") and "recipe" not in command]
    assert [command[1] for command in ours] == ["train", "evaluate"]
    for command in ours:
        monkeypatch.setattr(sys, "argv", [*command, *SHORTER[command[1]]])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    assert (tmp_path / "runs" / "framed" / "latest" / "quality" / "evaluation.json").is_file()


def test_the_makers_commands_are_understood() -> None:
    makers = [shlex.split(command)[3:] for command in COMMANDS if command.startswith("python -m")]
    verbs = [(asked.verb, str(asked.folder)) for asked in map(parser().parse_args, makers)]
    assert verbs == [
        ("start", "start"),
        ("ship", "first"),
        ("ship", "foretune-shapes"),
        ("check", "foretune-shapes"),
    ]
    shipped = resolve_model("foretune-shapes").folder
    assert shipped is not None
    recipes = {name: yaml.safe_load((shipped / name).read_text()) for name in ("earlier-recipe.yaml", "recipe.yaml")}
    assert [recipe["model"] for recipe in recipes.values()] == ["./start", "./first"]
    for name, recipe in recipes.items():
        assert f"foretune train {name}" in COMMANDS
        assert recipe["data"]["captions"] == "seen"
