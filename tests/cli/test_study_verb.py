"""`foretune study` with a file or a folder, as it is typed."""

import json
from pathlib import Path

import pytest

from foretune.config.study_files import StudyAsked, load_study
from foretune.studies import study_file
from foretune.studies.shipped import SHIPPED_STUDIES
from foretune.studies.study_file import PartDone
from tests.analyse.made_studies import make_part
from tests.cli.conftest import Foretune

FILE = """
protocol: equal-time
seconds: 2
experiment: {model: flux.1-dev, data: {kind: shapes}}
configurations:
  one-thread: {parallel.device: cpu, parallel.threads: 1}
  four-gpus: {parallel.device: cuda, parallel.devices: 4}
"""


def make_study(folder: Path) -> None:
    for seed in range(3):
        for place, name in enumerate(("one-thread", "two-threads")):
            held_out = {0: 1.0, 20: 0.8 - 0.1 * place + 0.001 * seed}
            make_part(folder, name, seed, order=(0, place), held_out=held_out, counted_s=2.0)


def test_a_folder_is_summed_up_again(tmp_path: Path, foretune: Foretune) -> None:
    make_study(tmp_path / "studies")
    answer = foretune("study", "studies/hardware", "--no-plot")
    assert answer.returncode == 0
    assert "hardware: the same time for all: which quality?" in answer.stdout
    row = next(line for line in answer.stdout.splitlines() if line.startswith("two-threads"))
    assert "0.7010 (0.6985 to 0.7035)" in row
    assert row.rstrip().endswith("3")
    assert "two-threads is better by 0.1" in answer.stdout.lower()
    stored = json.loads((tmp_path / "studies/hardware/study.json").read_text())
    assert stored["protocol"] == "equal-time"
    assert json.loads(foretune("study", "studies/hardware", "--no-plot", "--json").stdout) == stored
    page = foretune("study", "studies/hardware", "--no-plot", "--markdown").stdout.splitlines()
    assert page[2].startswith("| setting | configuration | held-out loss (less is better) | steps made |")
    assert page[3].startswith("|---|---|---:|")
    assert page[5].startswith("| as-asked | two-threads | 0.7010 (0.6985 to 0.7035) | 60 |")


def test_a_part_is_run_alone_and_absent_devices_are_refused_before_the_first_run(
    tmp_path: Path, foretune: Foretune, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hardware.yaml").write_text(FILE)
    answer = foretune("study", "hardware.yaml", "--no-plot")
    assert answer.returncode == 2
    assert "parallel.device: there is no cuda device here. Present: cpu" in answer.stderr
    assert "(in four-gpus/as-asked)" in answer.stderr
    wrong = foretune("study", "hardware.yaml", "--no-plot", "--only", "one-tread")
    assert "There is no configuration named 'one-tread'. Did you mean 'one-thread'?" in wrong.stderr
    heard: list[StudyAsked] = []

    def run(asked: StudyAsked, studies: Path, *_: object) -> tuple[PartDone, ...]:
        heard.append(asked)
        make_study(studies)
        return tuple(PartDone(part, studies / part.folder, is_reused=part.seed == 0) for part in asked.parts)

    monkeypatch.setattr(study_file, "run_study_file", run)
    done = foretune("study", "hardware.yaml", "--no-plot", "--only", "one-thread")
    assert done.returncode == 0, done.stderr
    assert {part.configuration for part in heard[0].parts} == {"one-thread"}
    assert "1 of 3 runs were there already." in done.stderr


def test_a_folder_does_not_hide_a_study_that_has_a_name(tmp_path: Path, foretune: Foretune) -> None:
    (tmp_path / "workers").mkdir()
    assert "protocol: speed" in foretune("study", "workers", "--show").stdout


def test_a_shipped_file_is_printed_to_be_changed(tmp_path: Path, foretune: Foretune) -> None:
    (tmp_path / "mine.yaml").write_text(foretune("study", "batch-size", "--show").stdout)
    assert (
        load_study(tmp_path / "mine.yaml").compared.keys() == load_study(SHIPPED_STUDIES["batch-size"]).compared.keys()
    )
    assert "is a folder" in foretune("study", ".", "--show").stderr


@pytest.mark.parametrize("option", [("--quick",), ("--model", "m"), ("--name", "n"), ("--only", "a")])
def test_what_would_be_ignored_for_a_folder_is_refused(
    option: tuple[str, ...], tmp_path: Path, foretune: Foretune
) -> None:
    make_study(tmp_path / "studies")
    assert f"{option[0]} goes with a study file" in foretune("study", "studies/hardware", "--no-plot", *option).stderr


def test_a_quick_study_and_one_of_another_model_have_their_own_folders(
    tmp_path: Path, foretune: Foretune, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hardware.yaml").write_text(
        FILE.replace("  four-gpus: {parallel.device: cuda, parallel.devices: 4}\n", "")
    )
    heard: list[StudyAsked] = []

    def run(asked: StudyAsked, studies: Path, *_: object) -> tuple[PartDone, ...]:
        heard.append(asked)
        for part in asked.parts:
            make_part(studies, part.configuration, part.seed, name=asked.name, held_out={20: 0.5}, counted_s=2.0)
        return ()

    monkeypatch.setattr(study_file, "run_study_file", run)
    for options in (("--quick",), ("--model", "flux.1-schnell"), ("--name", "again")):
        done = foretune("study", "hardware.yaml", "--no-plot", *options)
        assert done.returncode == 0, done.stderr
    assert [asked.name for asked in heard] == ["hardware-quick", "hardware-flux.1-schnell", "again"]
    assert {part.seed for part in heard[0].parts} == {0, 1}
    assert heard[1].parts[0].asked.experiment.model == "flux.1-schnell"
    assert "cannot name a study" in foretune("study", "hardware.yaml", "--no-plot", "--name", "../up").stderr
    assert "nowhere.yaml does not exist" in foretune("study", "nowhere.yaml", "--no-plot").stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--name", "../up"), "cannot name a study"), (("--only", "batch_size-3"), "no configuration named")],
)
def test_mistakes_are_reported_before_a_model_is_generated(
    options: tuple[str, ...], words: str, tmp_path: Path, foretune: Foretune
) -> None:
    answer = foretune("study", "batch-size", "--no-plot", "--studies", "studies", *options)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert not (tmp_path / "studies").exists()
    assert not (tmp_path / "up").exists()


def test_the_two_other_sizes_of_a_series_exclude_each_other(foretune: Foretune) -> None:
    answer = foretune("study", "cifar10-ddpm", "--quick", "--full")
    assert answer.returncode == 2
    assert "--quick and --full exclude each other" in answer.stderr
