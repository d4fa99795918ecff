"""Whatever a lever keeps in host memory, DDP starts: it takes only models on one type of device."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.matrix import axes, experiment_of
from foretune.models.locating import open_family
from foretune.step.building import assemble, build_step
from foretune.step.engine import share
from tests.matrix.cells import usual_cell
from tests.step.small_steps import made_batch

pytestmark = pytest.mark.simulated
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def group() -> Iterator[None]:
    """Two processes of which only this one exists: collectives return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


def supported(model: Path, *choices: Mapping[str, Any]) -> Experiment | None:
    """An experiment on two devices with these choices; None where it is refused."""
    names = dict(zip(axes(), usual_cell(), strict=True)) | {"method": "lora", "checkpointing": "all blocks"}
    base: dict[str, Any] = {
        "model": str(model),
        "data": {"kind": "shapes"},
        "train": {"steps": 1},
        "parallel": {"devices": 2, "device": "cuda"},
    }
    mapping = experiment_of(tuple(names.values()), base)
    for key, value in (pair for each in choices for pair in each.items()):
        section, _, field = key.partition(".")
        mapping.setdefault(section, {})[field] = value
    experiment = Experiment.model_validate(mapping)
    found = objections(experiment, "flux", distilled=False, device_type="cuda")
    return None if any(objection.severity == "refused" for objection in found) else experiment


def num_on_host(model: Path, experiment: Experiment) -> int:
    """Weights in host memory, once DDP has accepted the model."""
    family = open_family(model)
    denoiser = family.load_denoiser(model, torch.float32)
    assembled = assemble(experiment, family, denoiser, quantize_on=DEVICE)
    assembled.levers.place(denoiser, DEVICE)
    engine = share(denoiser, family, "none", DEVICE)
    step = build_step(experiment, family, assembled, DEVICE, engine=engine)
    assert all(weight.device == DEVICE for weight in step.trained.values())
    return sum(weight.device.type == "cpu" for weight in denoiser.parameters())


@pytest.mark.usefixtures("group")
def test_what_levers_keep_in_host_memory_is_ignored_by_ddp(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], report_figure: Callable[[str], None]
) -> None:
    model = tiny_pipeline("flux")
    levers = {name: values for name, values in axes()["lever"].items() if name not in ("none", "compile")}
    single = {name: supported(model, values) for name, values in levers.items()}
    on_host = [name for name, experiment in single.items() if experiment and num_on_host(model, experiment)]
    assert "swap of one block" in on_host
    others = {**levers, **axes()["quantized denoiser"], **axes()["checkpointing"]}
    pairs = [(name, other) for name in on_host for other in others if other != name]
    accepted = 0
    for name, other in pairs:
        experiment = supported(model, others[other], levers[name])
        if experiment is not None:
            assert num_on_host(model, experiment), (name, other)
            accepted += 1
    report_figure(f"DDP starts in {accepted} of {len(pairs)} pairs of choices with weights on the host")
    assert accepted > 0


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("index", [0, 1])
def test_ddp_computes_on_the_device_of_its_process(
    index: int, simulated_gpu: Any, tiny_pipeline: Callable[..., Path]
) -> None:
    model, device = tiny_pipeline("flux"), torch.device("cuda", index)
    experiment = supported(model)
    assert experiment is not None
    family = open_family(model)
    denoiser = family.load_denoiser(model, torch.float32)
    assembled = assemble(experiment, family, denoiser)
    assembled.levers.place(denoiser, device)
    engine = share(denoiser, family, "none", device)
    step = build_step(experiment, family, assembled, device, engine=engine)
    assert step.loss(made_batch(family, 1, device=str(device))).device == device
