"""Training, validation and sampling on a simulated Apple GPU: it has the operators that torch has on MPS and no others,
refuses float64, and lists copies that torch 2.13 does not protect there.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.catalog import TRAINABLE
from foretune.choices.matrix import axes, refusals
from foretune.core.errors import ExperimentErrors, UserError
from foretune.record.run_directory import RunDirectory
from foretune.training.devices import UNTESTED_ON_MPS
from tests.matrix.cells import usual_cell
from tests.matrix.running import mapping_of
from tests.training.short_runs import Recording, losses_of, short_mapping

pytestmark = pytest.mark.simulated_mps
TinyPipeline = Callable[..., Path]

_ON_MPS: dict[str, Any] = {
    "data": {"num_samples": 6},
    "train": {"steps": 2, "precision": "bf16"},
    "validate": {"num_inference_steps": 2, "num_held_out": 2},
    "parallel": {"device": "mps"},
}


@pytest.fixture(autouse=True)
def _no_unsafe_copies() -> Iterator[None]:
    from simaccel import mps

    mps.unsafe_copies(clear=True)
    yield
    copies = mps.unsafe_copies(clear=True)
    assert not copies, f"{len(copies)} copies do not keep their source, the first at\n{copies[0]}"


@pytest.mark.takes_turns
@pytest.mark.parametrize("family", TRAINABLE)
def test_every_family_trains_and_samples(family: str, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    """Encoders, autoencoder, step, held-out loss and samples."""
    validate = {**_ON_MPS["validate"], "every": 2, "prompts": ["a red circle"]}
    mapping = short_mapping(tiny_pipeline(family), tmp_path, **{**_ON_MPS, "validate": validate})
    run = ft.train(mapping, runs=tmp_path / "runs")
    assert run.status == "finished"
    assert len(list((run.path / "samples").rglob("*.png"))) == 2, "before and after training"


def _cells() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """For each value that MPS supports, a family and a cell with it. torch's compiler for MPS cannot be simulated."""
    usual = dict(zip(axes(), usual_cell(), strict=True))
    beside: tuple[dict[str, str], ...] = (
        {"method": "lora"},
        {"method": "lora", "checkpointing": "all blocks"},
        {"method": "full", "precision": "bf16"},
        {},
    )
    for name, values in axes().items():
        for value in set(values) - {"compile"}:
            cells = ((family, {**usual, **needed, name: value}) for needed in beside for family in ("flux", "ddpm"))
            cell = next((c for c in cells if not refusals(tuple(c[1].values()), c[0], "mps")), None)
            if cell is not None:
                yield name, value, cell[0], tuple(cell[1].values())


@pytest.mark.takes_turns
@pytest.mark.parametrize(("axis", "value", "family", "cell"), sorted(_cells()), ids=lambda each: str(each)[:40])
def test_every_choice_trains(
    axis: str, value: str, family: str, cell: tuple[str, ...], tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    mapping = mapping_of(cell, tiny_pipeline(family), tmp_path)
    run = ft.train({**mapping, "parallel": {"device": "mps"}}, runs=tmp_path / "runs")
    assert run.status == "finished", (axis, value)


def test_what_mps_does_not_support_is_refused_before_the_model_is_loaded(
    tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        **_ON_MPS,
        "method": {"kind": "lora", "dropout": 0.1},
        "levers": {"gradient_checkpointing": 1.0},
    }
    with pytest.raises(ExperimentErrors, match=r"method\.dropout: on mps, .*method\.dropout=0"):
        ft.train(short_mapping(tiny_pipeline("flux"), tmp_path, **sections), runs=tmp_path / "runs")


def test_checkpointing_is_refused_if_the_model_has_dropout_of_its_own(
    tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_pipeline("ddpm"), tmp_path / "model")
    path = model / "unet/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dropout": 0.1}))
    sections: dict[str, Any] = {**_ON_MPS, "method": {"kind": "full"}, "levers": {"gradient_checkpointing": 1.0}}
    with pytest.raises(UserError, match=r"this ddpm model has dropout, .*levers\.gradient_checkpointing=0"):
        ft.train(short_mapping(model, tmp_path, **sections), runs=tmp_path / "runs")


def test_in_fp32_it_trains_as_on_a_cpu(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    """The same kernels computed both: what differs is what was copied, and how."""
    losses, warnings = {}, {}
    for device in ("cpu", "mps"):
        sections: dict[str, Any] = {
            "train": {"steps": 4, "gradient_accumulation": 2},
            "levers": {"gradient_checkpointing": 1.0, "optimizer_offload": True},
            "parallel": {"device": device},
        }
        mapping = short_mapping(tiny_pipeline("sd3"), tmp_path, **sections)
        observer = Recording()
        run = ft.train(mapping, runs=tmp_path / device, observer=observer)
        warnings[device] = observer.of("warning").count(UNTESTED_ON_MPS)
        losses[device] = losses_of(RunDirectory(run.path))
    assert warnings == {"cpu": 0, "mps": 1}
    assert losses["mps"] == pytest.approx(losses["cpu"], rel=1e-5)


def test_what_has_no_kernel_fails_as_on_a_mac() -> None:
    import torch

    values = torch.rand(4, device="mps")
    assert torch.erfinv(values).device.type == "mps"
    with pytest.raises(NotImplementedError, match=r"'aten::special_ndtri.out' with arguments from the 'MPS' backend"):
        torch.special.ndtri(values)
    with pytest.raises(TypeError, match="doesn't support float64"):
        values.double()
    with pytest.raises(RuntimeError, match="at least two devices"):
        values + torch.rand(4)


def test_copies_that_keep_no_source_are_found() -> None:
    import torch

    from simaccel import mps

    torch.rand(4).to("mps", non_blocking=True)
    (stack,) = mps.unsafe_copies(clear=True)
    assert "test_apple.py" in stack.splitlines()[0]
