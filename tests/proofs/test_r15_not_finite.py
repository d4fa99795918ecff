"""R15: a NaN or an infinite value, wherever it begins, stops the run or is skipped, is named, and is never saved."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from foretune.training.not_finite import NotFinite
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.planted_values import PROMPT, SITES, Planted
from tests.proofs.resume_cells import NUM_STEPS, SAVE_EVERY, Cell
from tests.proofs.rotation import how_to_repeat, rows_of_turn, turn
from tests.proofs.stopping import Stopper, start

pytestmark = [pytest.mark.proof, pytest.mark.slow]

_STEP = 3
"""After the first checkpoint and before the second: the third of these steps is not saved by itself."""
_BEFORE_TRAINING = {"pixels", "embeddings"}
_GOES_ON = {"sample", "scaled gradient"}


@dataclass(frozen=True)
class Case:
    """One value at one place of one training."""

    site: str
    value: float
    family: str
    method: str
    is_asynchronous: bool

    def is_possible(self) -> bool:
        """A model that is trained as a whole has no base, and one of pixels has no encoders."""
        needs_latents = self.site in ("cached latents", "pixels", "embeddings", "sample")
        return not (self.site == "base" and self.method == "full") and not (needs_latents and self.family == "ddpm")

    def experiment(self, models: TinyModels, cache: Path) -> dict[str, Any]:
        precision = "fp16" if self.site == "scaled gradient" else "fp32"
        cell = Cell.from_row(f"{self.family} {self.method} {precision} 1 ema 0 0 constant cached validates -")
        asked = cell.experiment(str(models.path(self.family)), str(cache), "cpu")
        validate = {**asked["validate"], "num_inference_steps": 1}
        if self.site == "sample":
            validate["prompts"] = [PROMPT]
        return {**asked, "validate": validate, "save": {**asked["save"], "asynchronous": self.is_asynchronous}}


CASES = [
    case
    for number, (family, method, value, site) in enumerate(
        product(("flux", "sd3", "ddpm"), ("full", "lora"), (math.nan, math.inf), SITES)
    )
    if (case := Case(site, value, family, method, is_asynchronous=number % 3 == 0)).is_possible()
]


def test_r15_what_is_not_finite_is_named_and_not_saved(
    tiny_models: TinyModels, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    taken = CASES
    if proof_size(len(CASES), 0) == 0:
        taken = rows_of_turn(CASES, lambda case: {case.site}, turn(), 3)
    wrong = [
        f"{case}: {fault}"
        for number, case in enumerate(taken)
        for fault in _faults(case, number, tiny_models, tmp_path / str(number))
    ]
    sites = len({case.site for case in taken})
    report_figure(
        f"{len(taken)} of {len(CASES)} planted values at {sites} places: {len(wrong)} not named, saved, or met too "
        f"late ({how_to_repeat(turn())})"
    )
    assert not wrong, "\n".join(wrong)


def test_r15_control_without_the_checks_a_bad_average_is_saved(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretune.training.checkpoint_files.first_not_finite", lambda tensors: None)
    monkeypatch.setattr("foretune.training.loop.first_not_finite", lambda tensors: None)
    case = Case("EMA", math.nan, "flux", "lora", is_asynchronous=False)
    faults = list(_faults(case, 0, tiny_models, tmp_path))
    assert any("in a checkpoint" in fault for fault in faults)


def _faults(case: Case, number: int, models: TinyModels, folder: Path) -> Iterator[str]:
    """What is not as promised."""
    folder.mkdir(exist_ok=True)
    planted = Planted(case.value, _STEP, draw=number * 7919)
    observer = Stopper()
    # Encoders are asked only for what is not cached.
    cache = folder / "cache" if case.site in _BEFORE_TRAINING else models.cache
    run: RunDirectory | None = None
    with SITES[case.site](planted):
        try:
            run = start(case.experiment(models, cache), folder / "runs", observer)
        except NotFinite as error:
            said = str(error)
        else:
            record = run.read_record()
            assert record is not None
            said = record.outcome.reason or ""
            if (record.outcome.status == "finished") != (case.site in _GOES_ON):
                yield f"it is {record.outcome.status}: {said}"
    if case.site == "sample":
        said = "\n".join(observer.warnings)
    if case.site != "scaled gradient" and planted.name not in said:
        yield f"{planted.name!r} is not in {said!r}"
    if (run is None) != (case.site in _BEFORE_TRAINING):
        yield "it began to train" if run else "it did not begin"
    if run is not None:
        yield from _after_the_end(run, case)


def _after_the_end(run: RunDirectory, case: Case) -> Iterator[str]:
    for path in sorted(run.checkpoints.glob("step-*/*.safetensors")):
        bad = [name for name, tensor in load_file(path).items() if not bool(tensor.isfinite().all())]
        yield from (f"{name} in a checkpoint, {path.parent.name}/{path.name}" for name in bad)
    last = max(int(event["step"]) for event in read_events(run.events) if event["kind"] == "step")
    # An average is looked at when it is used: to validate, or to be saved.
    latest = NUM_STEPS - 1 if case.site in _GOES_ON else _STEP + SAVE_EVERY - 1 if case.site == "EMA" else _STEP - 1
    if last > latest:
        yield f"it went on until step {last + 1}"
