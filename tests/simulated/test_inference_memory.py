"""The memory of inference, planned phase by phase and then measured on the simulated GPU."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretune.core.vocabulary import InferencePhase
from foretune.models.locating import open_family
from foretune.planner.inference.memory import PipelineMemory
from foretune.planner.inference.question import InferenceQuestion, subject_of
from tests.simulated.tiny_rows import TinyRows

pytestmark = [pytest.mark.simulated, pytest.mark.slow]

SIZE_PX = 256
_ERROR = 0.1
_MOST_UNDER_AUTOCAST = 1.4
"""Planned over measured while denoising, whose trace is under autocast: norms in fp32 count beside tiny weights."""


def measured(folder: Path, batch_size: int) -> dict[str, int]:
    """The most bytes of tensors in each phase, as a pipeline runs that is on the device with all parts."""
    family = open_family(folder)
    pipeline: Any = family.load_pipeline(folder, torch.bfloat16).to("cuda")
    pipeline.set_progress_bar_config(disable=True)
    peaks: dict[str, int] = {}

    def ends(phase: InferencePhase) -> None:
        if phase not in peaks:
            peaks[phase] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    denoiser, decode = getattr(pipeline, family.denoiser_part), pipeline.vae.decode
    denoiser.register_forward_pre_hook(lambda *_: ends(InferencePhase.ENCODE))

    def decoded(*given: Any, **options: Any) -> Any:
        ends(InferencePhase.DENOISE)
        return decode(*given, **options)

    pipeline.vae.decode = decoded
    torch.cuda.reset_peak_memory_stats()
    arguments = family.sampling_arguments(family.own_text_tokens(), None)
    with torch.no_grad():
        pipeline(
            prompt=["a red circle"] * batch_size,
            height=SIZE_PX,
            width=SIZE_PX,
            num_inference_steps=1,
            output_type="pt",
            **arguments,
        )
    ends(InferencePhase.DECODE)
    return peaks


@pytest.mark.parametrize(("family", "like", "batch_size"), [("flux", "flux.1-dev", 2), ("sd3", "sd3.5-medium", 2)])
def test_each_phase_takes_what_was_planned(
    family: str,
    like: str,
    batch_size: int,
    simulated_gpu: Any,
    tiny_pipeline: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tiny_pipeline(family)
    gc.collect()
    before = torch.cuda.memory_allocated()
    found = {phase: peak - before for phase, peak in measured(folder, batch_size).items()}
    rows = TinyRows(folder, like, monkeypatch)
    question = InferenceQuestion(model=str(folder), batch_size=batch_size, size_px=SIZE_PX)
    memory = PipelineMemory(subject_of(question, rows, on_host=False))
    planned = {phase.name: phase.memory.device_bytes for phase in memory.phases if phase.name in found}
    assert planned.keys() == found.keys()
    for phase in (InferencePhase.ENCODE, InferencePhase.DECODE):
        assert planned[phase] == pytest.approx(found[phase], rel=_ERROR), phase
    denoising = planned[InferencePhase.DENOISE] / found[InferencePhase.DENOISE]
    assert 1 - _ERROR < denoising < _MOST_UNDER_AUTOCAST
