"""A base is loaded layer by layer to the simulated GPU: neither host nor device ever holds it twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foretune.choices.quantize import Quantize
from foretune.choices.training import Levers
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from foretune.training.base_loading import LoadRequest, load_base

pytestmark = pytest.mark.simulated
TinyPipeline = Callable[..., Path]


def on_host_while_loading(
    monkeypatch: pytest.MonkeyPatch, family: TrainableFamily, load: Callable[[], Any]
) -> tuple[Any, int, int]:
    """What was loaded, the most bytes of weights that the host held at a time, and the bytes of all."""
    most_bytes, load_denoiser = 0, type(family).load_denoiser

    def watched(self: TrainableFamily, folder: Path, dtype: torch.dtype, finish: Any, stored: Any) -> nn.Module:
        def finish_and_count(denoiser: nn.Module, name: str) -> None:
            nonlocal most_bytes
            held = sum(p.nbytes for p in denoiser.parameters() if p.device.type == "cpu")
            most_bytes = max(most_bytes, held)
            finish(denoiser, name)

        return load_denoiser(self, folder, dtype, finish_and_count, stored)

    monkeypatch.setattr(type(family), "load_denoiser", watched)
    found = load()
    whole_bytes = sum(p.nbytes for p in family.denoiser_on_meta(torch.bfloat16).parameters())
    return found, most_bytes, whole_bytes


@pytest.mark.parametrize("numbers", ["none", "int8"])
def test_the_host_holds_one_layer(
    numbers: Any,
    simulated_gpu: Any,
    tiny_pipeline: TinyPipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tiny_pipeline("flux", "dev")
    family, device = open_family(folder), torch.device("cuda", 0)
    request = LoadRequest(dtype=torch.bfloat16, device=device, quantize=Quantize(denoiser=numbers))
    before = simulated_gpu.memory_stats(0)["allocated_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    (denoiser, quantized), most_bytes, whole_bytes = on_host_while_loading(
        monkeypatch, family, lambda: load_base(family, folder, request)
    )
    assert {p.device for p in denoiser.parameters()} == {device}
    assert most_bytes < whole_bytes / 10
    weights_bytes = sum(p.nbytes for p in denoiser.parameters())
    peak = simulated_gpu.memory_stats(0)["allocated_bytes.all.peak"] - before
    # One layer is there twice while it is quantised, and each tensor takes a multiple of 512 bytes.
    assert peak < weights_bytes + whole_bytes / 4
    assert (quantized is not None) == (numbers == "int8")


def test_swapped_blocks_stay_on_the_host(
    simulated_gpu: Any,
    tiny_pipeline: TinyPipeline,
) -> None:
    folder = tiny_pipeline("flux", "dev")
    family, device = open_family(folder), torch.device("cuda", 0)
    quantize, levers = Quantize(denoiser="int8"), Levers(block_swap=2)
    denoiser, _ = load_base(
        family, folder, LoadRequest(dtype=torch.bfloat16, device=device, quantize=quantize, levers=levers)
    )
    places = [{p.device.type for p in block.parameters()} for block in family.blocks(denoiser)]
    assert places.count({"cpu"}) == 2
    assert places.count({"cuda"}) == len(places) - 2
