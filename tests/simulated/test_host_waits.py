"""The list of waits: what the matrix compares with it would be seen, and what is ours waits nowhere else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.core.observer import Observer
from foretune.models.locating import open_family
from foretune.step.training_step import TrainingStep
from foretune.training.encoding import LiveEncoders
from tests.simulated.cell_steps import Steps, run_steps
from tests.simulated.host_waits import differences
from tests.training.short_runs import short_mapping

pytestmark = pytest.mark.simulated


def lora_steps(model: Path, work: Path, device: Any, **levers: Any) -> Steps:
    train = {"steps": 2, "precision": "bf16", **({"max_grad_norm": None} if "fused_backward" in levers else {})}
    mapping = short_mapping(
        model, work, train=train, validate={"num_held_out": 0}, levers=levers, parallel={"device": "cuda"}
    )
    return run_steps(mapping, model, device)


def all_differences(steps: Steps) -> list[str]:
    return [found for facts, waits in steps.by_step for found in differences(facts, waits)]


def test_weights_are_updated_in_the_backward_pass_without_a_wait(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    steps = lora_steps(tiny_pipeline("flux", "dev"), tmp_path, simulated_gpu, fused_backward=True)
    assert steps.outcome.status == "finished", steps.outcome.reason
    assert not all_differences(steps)


def test_a_planted_read_of_a_number_is_seen(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TrainingStep.loss

    def loss(self: TrainingStep, batch: Any) -> Any:
        value = real(self, batch)
        assert value.item() < float("inf")
        return value

    model = tiny_pipeline("flux", "dev")
    assert not all_differences(lora_steps(model, tmp_path, simulated_gpu))
    monkeypatch.setattr(TrainingStep, "loss", loss)
    found = all_differences(lora_steps(model, tmp_path, simulated_gpu))
    assert len(found) == 2, "one in each step"
    assert all("not on the list: item" in text for text in found)


def test_a_missing_wait_is_a_finding(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("foretune.step.optimizers.on_host.wait_for_copies", lambda device: None)
    steps = lora_steps(tiny_pipeline("flux", "dev"), tmp_path, simulated_gpu, optimizer_offload=True)
    assert steps.outcome.status == "failed"
    torch.cuda.synchronize()
    findings = simulated_gpu.findings(True)  # the test expects them
    assert any("page-locked memory while a copy" in text for text in findings)


def test_a_listed_wait_that_does_not_happen_is_seen(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    steps = lora_steps(tiny_pipeline("flux", "dev"), tmp_path, simulated_gpu, optimizer_offload=True)
    (facts, waits), *_ = steps.by_step
    assert not differences(facts, waits)
    assert differences(facts, []) == ["`levers.optimizer_offload`: the host waited 0 times, by the list 1"]


def test_a_wrong_device_is_an_error(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from foretune.models import family

    real = family.numbers_on
    monkeypatch.setattr(family, "numbers_on", lambda _, values: real(torch.device("cuda", 1), values))
    steps = lora_steps(tiny_pipeline("wan"), tmp_path, simulated_gpu)
    assert steps.outcome.status == "failed"
    assert "same device" in str(steps.outcome.reason)


@pytest.mark.parametrize("family", ["wan", "qwen_image", "mochi"])
def test_latents_are_scaled_without_a_wait(family: str, simulated_gpu: Any, tiny_pipeline: Callable[..., Path]) -> None:
    import torch

    bound = open_family(tiny_pipeline(family))
    shape = bound.latent_shape(32, 32, 5)
    noise = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    moments = torch.cat([noise, noise], dim=1)
    on_device = moments.cuda(), noise.cuda()
    simulated_gpu.syncs(True)
    latents = bound.latents_from_moments(*on_device)
    assert not simulated_gpu.syncs(True)
    torch.testing.assert_close(latents.cpu(), bound.latents_from_moments(moments, noise))


@pytest.mark.parametrize("family", ["z_image", "flux"])
def test_what_the_host_reads_of_a_batch_stays_there(
    family: str, simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    import torch

    from foretune.config.reading import understand
    from foretune.training.preparing import prepare

    model = tiny_pipeline(family)
    mapping = short_mapping(model, tmp_path, parallel={"device": "cuda"}, validate={"num_held_out": 0})
    prepared = prepare(understand(mapping, source="short").experiment, model, Observer())
    assert isinstance(prepared.encoders, LiveEncoders)
    batch = prepared.encoders.ready(prepared.batch_maker[0], torch.device("cuda"))
    assert batch.conditioning is not None
    on_host = {name for name, tensor in batch.conditioning.items() if tensor.device.type == "cpu"}
    assert on_host == set(prepared.family.read_by_host)
