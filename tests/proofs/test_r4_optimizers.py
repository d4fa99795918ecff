"""R4 for every optimizer, and for updates in the backward pass and on the host: what each of them keeps comes back.

States are bytes, scales of blocks, sums of rows, copies on the host, and numbers that belong to all weights at once.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.checkpoints import CheckpointStore, NoGoodCheckpoint
from foretune.training.preparing import Prepared, prepare
from foretune.training.state import check, components
from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.proofs.ends import end_of
from tests.proofs.omissions import omissions
from tests.proofs.resume_cells import Cell
from tests.proofs.stopping import Stopper, restless_scaler, start
from tests.proofs.test_r4_resume_grid import stop_and_resume

pytestmark = [pytest.mark.proof, pytest.mark.takes_turns]

_BF16 = {"weight_dtype": "bf16"}
_NO_CLIPPING = {"max_grad_norm": None}
# What is trained and how it is stopped, and what is put into the experiment; validation at each save looks at averages.
_CASES: list[tuple[str, dict[str, Any]]] = [
    ("flux full bf16 1 - 0 0 cosine cached validates asked-mid-epoch", {"optimizer": {"kind": "adamw8bit"}}),
    ("sd3 lora-dropout fp16 1 ema 0 0 linear cached - dies-after-step", {"optimizer": {"kind": "adamw8bit"}}),
    ("ddpm full fp32 1 - 0 0 linear cached - twice", {"optimizer": {"kind": "lion"}}),
    ("flux lora bf16 3 - 0 0.5 cosine cached - dies-in-window", {"optimizer": {"kind": "lion8bit"}}),
    ("sd3 full bf16 1 ema 0 0 cosine cached - asked-at-epoch-end", {"optimizer": {"kind": "adafactor"}}),
    ("flux full bf16 1 - 0 0 constant cached validates dies-after-step", {"optimizer": {"kind": "prodigy", "lr": 1.0}}),
    ("sd3 lora fp16 3 - 0 0 cosine cached - dies-in-window", {"optimizer": {"kind": "prodigy", "lr": 1.0}}),
    (
        "flux lora-dropout bf16 1 - 0 0 constant cached validates twice",
        {"optimizer": {"kind": "schedule-free", "warmup_steps": 3}},
    ),
    (
        "flux full bf16 1 ema 0 0 cosine cached validates asked-mid-epoch",
        {"train": _BF16, "optimizer": {"compensation": "stochastic"}},
    ),
    (
        "flux full bf16 1 - 0 0.5 cosine cached - dies-after-step",
        {"train": {**_BF16, **_NO_CLIPPING}, "optimizer": {"kind": "adafactor"}, "levers": {"fused_backward": True}},
    ),
    (
        "sd3 full fp32 1 - 0 0 constant cached validates asked-mid-epoch",
        {"train": _NO_CLIPPING, "optimizer": {"kind": "schedule-free"}, "levers": {"fused_backward": True}},
    ),
    (
        "flux full bf16 1 - 0 0 linear cached - twice",
        {
            "train": {**_BF16, **_NO_CLIPPING},
            "optimizer": {"compensation": "stochastic"},
            "levers": {"fused_backward": True},
        },
    ),
    (
        "flux full bf16 3 ema 0 0 cosine cached validates dies-in-window",
        {"train": _BF16, "levers": {"optimizer_offload": True, "ema_offload": True}},
    ),
    (
        "sd3 lora fp16 1 - 0 0 linear cached - asked-at-epoch-end",
        {"optimizer": {"kind": "adamw8bit"}, "levers": {"optimizer_offload": True}},
    ),
]


def experiment_of(row: str, changes: dict[str, Any], models: TinyModels) -> dict[str, Any]:
    cell = Cell.from_row(row)
    asked = cell.experiment(str(models.path(cell.family)), str(models.cache), "cpu")
    for section, values in changes.items():
        asked[section] = {**asked.get(section, {}), **values}
    return asked


@pytest.mark.slow
def test_r4_resume_is_bit_exact_with_every_optimizer(
    tiny_models: TinyModels, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    different = {}
    cases = _CASES[:: proof_size(1, 3)]
    for number, (row, changes) in enumerate(cases):
        cell, experiment = Cell.from_row(row), experiment_of(row, changes, tiny_models)
        with restless_scaler(2.0**22):
            whole = start(experiment, tmp_path / f"{number}-whole")
            stopped = stop_and_resume(cell, experiment, tmp_path / f"{number}-stopped")
        if parts := end_of(whole).differences(end_of(stopped)):
            different[f"{row} {changes}"] = parts
    report_figure(
        f"{len(cases) - len(different)} of {len(cases)} cells over 8-bit, factored, self-tuning and compensated "
        "optimizers, in the backward pass and on the host, bit-exact after a resume"
    )
    assert different == {}


@pytest.mark.parametrize("number", [0, 5, 10, 12], ids=["adamw8bit", "prodigy", "schedule-free", "on-host"])
def test_r4_what_is_left_out_of_an_optimizer_is_refused(
    number: int,
    tiny_models: TinyModels,
    tmp_path: Path,
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    experiment = experiment_of(*_CASES[number], tiny_models)
    run = start(experiment, tmp_path / "runs", Stopper(ask_after=1))
    _, asked, effective = run.read_experiment()
    prepared = prepare(asked, Path(effective["model_folder"]), Observer())
    (checkpoint,) = run.checkpoints.glob("step-*")
    assert _is_accepted(prepared, run)
    whole = tmp_path / "whole"
    shutil.copytree(checkpoint, whole)
    found = [(name, omit) for name, omit in omissions(whole, every=proof_size(5, 40)) if "optimizer" in name]
    accepted = []
    for name, omit in found:
        shutil.rmtree(checkpoint)
        shutil.copytree(whole, checkpoint)
        omit(checkpoint)
        if _is_accepted(prepared, run):
            accepted.append(name)
    report_figure(f"{len(found) - len(accepted)} of {len(found)} omissions from the optimizer's state refused")
    assert len(found) >= 8
    assert accepted == []


def _is_accepted(prepared: Prepared, run: RunDirectory) -> bool:
    store = CheckpointStore(run.checkpoints, keep=1)
    try:
        store.read_newest(components(prepared.step), lambda checkpoint: check(prepared.step, checkpoint))
    except NoGoodCheckpoint:
        return False
    return True
