"""The waits of the host in a step as torch itself reports them: the same on a real GPU and on the simulated one."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foretune.catalog import TRAINABLE
from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.preparing import prepare
from foretune.training.session import Session
from tests.simulated.cell_steps import facts_of
from tests.simulated.host_waits import HOST_WAITS
from tests.training.short_runs import short_mapping

pytestmark = pytest.mark.gpu


class WatchedByTorch:
    """An instrument of the loop that lets torch refuse waits, or list them, in every step after the first."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def before_step(self, step: int) -> None:
        import torch

        if step:
            torch.cuda.set_sync_debug_mode(self.mode)

    def after_step(self, step: int) -> None:
        self.close()

    def close(self) -> None:
        import torch

        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def listed_waits() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield heard


@pytest.mark.parametrize("family", TRAINABLE)
def test_a_step_waits_only_where_the_list_says(
    family: str,
    tiny_pipeline: Callable[..., Path],
    tmp_path: Path,
    listed_waits: list[warnings.WarningMessage],
) -> None:
    """Torch raises at the first wait, if the list has none for this family; otherwise it says in which file each is."""
    model = tiny_pipeline(family)
    method = "full" if family == "ddpm" else "lora"
    train = {"steps": 2, "gradient_accumulation": 2, "precision": "bf16"}
    mapping = short_mapping(
        model, tmp_path, method, train=train, validate={"num_held_out": 0}, parallel={"device": "cuda"}
    )
    asked = understand(mapping, source="short")
    prepared = prepare(asked.experiment, model, Observer())
    facts = facts_of(prepared)
    expected = Counter[str]()
    for wait in HOST_WAITS:
        num = wait.num(facts)
        assert isinstance(num, int), "captions are cached, so every number is exact"
        if num:
            expected[wait.places[0][0]] += num
    run = RunDirectory.create(tmp_path / "runs", "waits")
    run.write_experiment(asked.as_asked, asked.experiment, prepared.effective)
    session = Session(run, prepared, Observer(), steps_only=True)
    session.loop.instruments = (WatchedByTorch("warn" if expected.total() else "error"),)
    outcome = session.run_loop()
    assert outcome.status == "finished", outcome.reason
    files = [heard.filename for heard in listed_waits if "synchronizing CUDA operation" in str(heard.message)]
    found = Counter(next((known for known in expected if name.endswith(known)), name) for name in files)
    assert found == expected
