"""The study files that come with Foretune, and what they generate."""

from pathlib import Path

import pytest
from PIL import Image

from foretune.api.study import study
from foretune.choices.study import StudyFixtures
from foretune.choices.tiny import TINY_VARIANTS
from foretune.config.study_files import load_study, read_study
from foretune.core.observer import Observer
from foretune.models.locating import open_family
from foretune.studies.fixtures import make_fixtures
from foretune.studies.shipped import SHIPPED_STUDIES
from tests.training.short_runs import Recording


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("name", SHIPPED_STUDIES)
def test_every_file_can_be_run_where_it_lies(name: str, is_quick: bool, tmp_path: Path) -> None:
    changes = {"model": "foretune-shapes"}
    fixtures = load_study(SHIPPED_STUDIES[name]).fixtures
    assert fixtures is not None
    if fixtures.images is not None:
        changes["data.path"] = str(tmp_path)
    asked = read_study(SHIPPED_STUDIES[name], is_quick=is_quick, changes=changes)
    assert asked.file.protocol == "speed"
    assert asked.name == (f"{name}-quick" if is_quick else name)
    # Compiling takes minutes: once is enough to try it.
    num_quick_seeds = 1 if name == "compile" else 2
    assert len(asked.file.seeds) == (num_quick_seeds if is_quick else 3)
    assert all(part.asked.experiment.validation.num_held_out == 0 for part in asked.parts), "nothing but steps"


def test_full_size_asks_what_the_study_promises() -> None:
    def compared(name: str) -> list[str]:
        return list(load_study(SHIPPED_STUDIES[name]).compared)

    assert set(SHIPPED_STUDIES) == {"batch-size", "compile", "methods", "precision", "workers"}
    assert compared("workers") == [f"num_workers-{num}" for num in range(9)]
    assert compared("methods") == ["full", "lora-4", "lora-16", "lora-64"]
    assert compared("batch-size") == [f"batch_size-{size}" for size in (1, 2, 4, 8, 16)]


@pytest.mark.parametrize("family", TINY_VARIANTS)
def test_a_tiny_model_of_every_family_can_be_a_fixture(family: str, tmp_path: Path) -> None:
    changes = make_fixtures(StudyFixtures(model=f"tiny-{family}"), tmp_path, Observer())
    assert open_family(Path(changes["model"])).name == family


def test_fixtures_are_made_once_and_whole(tmp_path: Path) -> None:
    fixtures, observer = StudyFixtures(model="small-flux", images=2), Recording()
    changes = make_fixtures(fixtures, tmp_path / "s", observer)
    assert len(list(Path(changes["data.path"]).glob("*.jpg"))) == 2
    with Image.open(Path(changes["data.path"]) / "000.jpg") as image:
        assert image.size == (1024, 1024)
    weights = Path(changes["model"]) / "transformer" / "diffusion_pytorch_model.safetensors"
    assert weights.stat().st_size > 4 * 20e6, "large enough to show in time and memory"
    before = weights.stat().st_mtime_ns
    assert make_fixtures(fixtures, tmp_path / "s", Observer()) == changes
    assert weights.stat().st_mtime_ns == before
    assert not [path for path in (tmp_path / "s" / "fixtures").iterdir() if path.name.startswith("small-flux-")]


@pytest.mark.slow
@pytest.mark.usefixtures("processes_begin_at_once")
def test_a_shipped_study_runs_from_its_name_to_its_answer(tmp_path: Path) -> None:
    """Real processes: a generated model, four runs, a table with a ratio; the second call runs nothing."""
    found = study("batch-size", quick=True, studies=tmp_path, plot=False)
    assert found.problems == {}
    assert [cell.configuration for cell in found.summary.cells] == ["batch_size-1", "batch_size-4"]
    assert found.summary.varied == "train.batch_size"
    (rate,) = [one for one in found.summary.comparisons if one.title == "samples/s"]
    assert rate.value > 1.2, "a batch of 4 costs far less than four of 1"
    assert rate.answer == "not a claim", "two seeds"
    assert {axis.title for axis in found.summary.axes} >= {"samples/s", "time for 50,000 samples, min"}
    observer = Recording()
    again = study("batch-size", quick=True, studies=tmp_path, plot=False, observer=observer)
    assert all(part.is_reused for part in again.done)
    assert again.json == found.json
    assert any("4 of 4 runs were there already" in text for text in observer.of("message"))
