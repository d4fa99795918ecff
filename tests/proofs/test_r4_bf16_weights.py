"""R4 for weights in bf16: the shift and the fp32 average are part of what a checkpoint must bring back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.conftest import TinyModels
from tests.proofs.ends import end_of
from tests.proofs.resume_cells import Cell
from tests.proofs.stopping import start
from tests.proofs.test_r4_resume_grid import stop_and_resume

pytestmark = pytest.mark.proof

_CELLS = [
    Cell.from_row("flux full bf16 3 ema 0 0.5 cosine cached validates asked-mid-epoch"),
    Cell.from_row("sd3 lora-dropout bf16 1 - 0 0 constant cached validates dies-after-step"),
]


def in_bf16(experiment: dict[str, Any]) -> dict[str, Any]:
    train = {**experiment["train"], "weight_dtype": "bf16"}
    optimizer = {**experiment["optimizer"], "compensation": "kahan", "betas": [0.9, 0.99]}
    return {**experiment, "train": train, "optimizer": optimizer}


def test_r4_resume_is_bit_exact_with_bf16_weights(
    tiny_models: TinyModels, tmp_path: Path, report_figure: Callable[[str], None]
) -> None:
    different = {}
    for number, cell in enumerate(_CELLS):
        experiment = in_bf16(cell.experiment(str(tiny_models.path(cell.family)), str(tiny_models.cache), "cpu"))
        whole = start(experiment, tmp_path / f"{number}-whole")
        stopped = stop_and_resume(cell, experiment, tmp_path / f"{number}-stopped")
        if parts := end_of(whole).differences(end_of(stopped)):
            different[cell] = parts
    report_figure(f"{len(_CELLS) - len(different)} of {len(_CELLS)} cells with bf16 weights bit-exact after a resume")
    assert different == {}
