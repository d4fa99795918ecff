"""The examples are complete, start, and do what their files say.

They are copied to a folder of their own: what they make beside themselves must not be left in the repository.
"""

import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from foretune.analyse.study_summary import summarise_study
from foretune.config import read_experiment
from foretune.config.study_files import read_study
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.data.sources import open_source
from foretune.sweeps.trial_request import TrialRequest
from foretune.sweeps.trial_worker import perform
from foretune.training.train import Trained, train

EXAMPLES = Path(__file__).parents[2] / "examples"
FAMILIES = ("ddpm", "sd3", "flux")
METHODS = ("full", "lora")
FILES = tuple(f"{family}-{method}.yaml" for family in FAMILIES for method in METHODS)
STUDIES = {
    "classical.yaml": "speed",
    "convergence.yaml": "convergence",
    "hardware-speed.yaml": "equal-steps",
    "hardware.yaml": "equal-time",
}
NOT_VALIDATED = ("validate.prompts=[]", "validate.num_held_out=0", "validate.every=null", "save.every=null")


@dataclass(frozen=True)
class ExampleFolder:
    """A working directory with the examples in it, and what `prepare.py` made."""

    folder: Path

    def prepare(self, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
        script = self.folder / "examples" / "prepare.py"
        monkeypatch.setattr(sys, "argv", [str(script), family])
        runpy.run_path(str(script), run_name="__main__")

    def train(self, file: str, *overrides: str) -> Trained:
        return train(read_experiment(Path("examples") / file, overrides), self.folder / "runs", Observer())


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExampleFolder:
    """The paths in the files are relative to the repository, so the copy is the working directory."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("work", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    return ExampleFolder(tmp_path)


def test_there_is_one_for_each_family_and_method() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == {*FILES, *STUDIES}


@pytest.mark.parametrize("file", FILES)
def test_the_first_lines_say_how_to_start_it(file: str) -> None:
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    family = file.partition("-")[0]
    assert f"python examples/prepare.py {family} && foretune train examples/{file}" in text


@pytest.mark.takes_turns
@pytest.mark.parametrize("file", FILES)
def test_a_short_run_of_each(file: str, examples: ExampleFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    family, _, method = file.removesuffix(".yaml").partition("-")
    examples.prepare(family, monkeypatch)
    asked = read_experiment(Path("examples") / file)
    assert asked.warnings == ()
    assert asked.model.family == family
    assert asked.experiment.method.kind == method
    if method == "lora":
        assert vars(asked.experiment.method)["alpha"] != vars(asked.experiment.method)["rank"]
    trained = examples.train(file, "train.steps=2", *NOT_VALIDATED)
    assert trained.record.outcome.status == "finished"
    assert trained.num_changed_tensors == trained.num_trained_tensors
    num_trained, num_all = trained.record.num_trainable_params, trained.record.num_params
    assert num_trained is not None
    assert num_all is not None
    if method == "lora":
        assert trained.base_unchanged is True
        assert 0 < num_trained / num_all < 0.2
    else:
        assert num_trained == num_all
    made = {path.name for path in examples.folder.iterdir()}
    assert made <= {"examples", "runs", "cache"}, "it writes where its file says"


@pytest.mark.takes_turns
@pytest.mark.parametrize("file", STUDIES)
def test_a_short_part_of_each_study(file: str, examples: ExampleFolder) -> None:
    """As its process would do it; with fewer steps, and without the pictures that nobody looks at."""
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    assert f"#   foretune study examples/{file}" in text
    asked = read_study(Path("examples") / file)
    assert asked.warnings == ()
    assert asked.file.protocol == STUDIES[file]
    assert len(asked.file.seeds) == 3
    first = asked.parts[0]
    length = {"seconds": 0.2} if asked.file.seconds else {"steps": 2}
    mapping = {**first.asked.as_asked, "validate": {"num_held_out": 0}}
    mapping["train"] = {**mapping["train"], "steps": None, **length}
    folder = examples.folder / first.folder
    folder.mkdir(parents=True)
    about = {"study": first.about()}
    request = TrialRequest(measure="train", experiment=mapping, name=first.study, folder=str(folder), about=about)
    assert perform(request.to_mapping(), Observer())["run"]
    summary = summarise_study(examples.folder / asked.name)
    assert summary.protocol == STUDIES[file]
    assert [cell.configuration for cell in summary.cells] == [first.configuration]


def test_the_ddpm_example_makes_a_folder_in_the_cifar_10_layout(
    examples: ExampleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples.prepare("ddpm", monkeypatch)
    names = {path.name for path in (examples.folder / "examples" / "work" / "cifar-10" / "train").iterdir()}
    assert names == {f"{number}.png" for number in range(1, 513)}
    data = read_experiment(Path("examples/ddpm-full.yaml")).experiment.data
    source = open_source(data, largest=Bucket(32, 32))
    assert len(source) == 512
    assert (source.info(0).width_px, source.info(0).height_px) == (32, 32)


@pytest.mark.parametrize("arguments", [(), ("unknown",), ("flux", "sd3")])
def test_preparing_says_how_it_is_called(
    arguments: tuple[str, ...], examples: ExampleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = examples.folder / "examples" / "prepare.py"
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    with pytest.raises(SystemExit, match=r"python examples/prepare\.py ddpm\|sd3\|flux"):
        runpy.run_path(str(script), run_name="__main__")
    assert not (examples.folder / "examples" / "work").exists()


@pytest.mark.slow
def test_full_fine_tuning_lowers_the_held_out_loss_by_a_fifth(
    examples: ExampleFolder, monkeypatch: pytest.MonkeyPatch, report_figure: Callable[[str], None]
) -> None:
    """The example as it stands, but for the pictures, which take as long as the training."""
    examples.prepare("flux", monkeypatch)
    trained = examples.train("flux-full.yaml", "validate.prompts=[]")
    held_out = trained.record.measured.held_out_losses
    assert [step for step, _ in held_out] == [0, 150, 300]
    first, last = held_out[0][1], held_out[-1][1]
    report_figure(f"held-out loss {first:.4f} to {last:.4f}: {(last - first) / first:+.1%}")
    assert last <= 0.8 * first
