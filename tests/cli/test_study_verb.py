"""`foretune study` with a file or a folder, as it is typed."""

import json
from pathlib import Path

import pytest

from foretune.api.study import NAMED_STUDIES
from foretune.config.study_files import StudyAsked
from foretune.studies import study_file
from foretune.studies.named import STUDIES
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


def test_a_part_is_run_alone_and_several_devices_are_refused_for_now(
    tmp_path: Path, foretune: Foretune, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hardware.yaml").write_text(FILE)
    answer = foretune("study", "hardware.yaml", "--no-plot")
    assert answer.returncode == 2
    assert "parallel.devices: 4 devices are not supported for flux yet" in answer.stderr
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
    assert set(NAMED_STUDIES) == set(STUDIES)
    (tmp_path / "workers").mkdir()
    assert "--only goes with a study file" in foretune("study", "workers", "--no-plot", "--only", "a").stderr


def test_options_of_named_studies_do_not_go_with_files(tmp_path: Path, foretune: Foretune) -> None:
    (tmp_path / "hardware.yaml").write_text(FILE)
    assert (
        "--quick goes with the studies that have a name"
        in foretune("study", "hardware.yaml", "--no-plot", "--quick").stderr
    )
    assert "--only goes with a study file" in foretune("study", "batch-size", "--no-plot", "--only", "a").stderr
    assert "nowhere.yaml does not exist" in foretune("study", "nowhere.yaml", "--no-plot").stderr
