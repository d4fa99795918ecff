"""Compiled blocks while a model is sampled: what is reported, and that nothing of it is left afterwards."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from foretune.core.errors import Refused
from foretune.models.locating import open_family
from foretune.step.levers.compiling import apply_compile, check_compiler
from foretune.training import compiled_sampling
from foretune.training.compiled_sampling import _cost_sentence, _PassTimes, compiled_blocks, refuse_uncompilable
from foretune.training.sampling_setup import SamplingChoice, sampling_setup

TinyPipeline = Callable[..., Path]


def test_what_compiling_cost_and_when_it_has_paid() -> None:
    plain = _PassTimes(warm_up_s=[0.5], steady_s=[0.2, 0.2, 0.2])
    compiled = _PassTimes(warm_up_s=[8.1, 2.1], steady_s=[0.1] * 18)
    # 10 s are paid by 0.1 s a pass; four images take 20 passes, which are 10 steps where guidance takes two.
    assert _cost_sentence(plain, compiled, num_images=4) == (
        "Compiled blocks: 10 s of warm-up. A pass of the denoiser takes 0.10 s, 0.20 s uncompiled (measured once). "
        "Break-even after about 100 passes of the denoiser (20 images)."
    )
    slower = _PassTimes(warm_up_s=[8.0], steady_s=[0.3])
    assert _cost_sentence(plain, slower, 1).endswith("No break-even: compiled passes are not faster here.")
    only_first = _PassTimes(warm_up_s=[8.0])
    assert _cost_sentence(plain, only_first, 1) == (
        "Compiled blocks: 8.00 s for the first passes of the denoiser, and no other was made. A break-even needs more "
        "denoising steps."
    )


def test_blocks_are_compiled_meanwhile(tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_sampling, "apply_compile", partial(apply_compile, backend="eager"))
    folder = tiny_pipeline("flux")
    family = open_family(folder)
    setup = sampling_setup(SamplingChoice(device="cpu", precision="fp32", compile="regional"))
    denoiser = setup.load_base(family, folder)
    reported: list[str] = []
    blocks = family.blocks(denoiser)
    with compiled_blocks(setup, family, denoiser, lambda _: None, 1, reported.append):
        assert all("forward" in vars(block) for block in blocks)
    assert not any("forward" in vars(block) for block in blocks)
    assert len(reported) == 1
    off = sampling_setup(SamplingChoice(device="cpu", precision="fp32"))
    with compiled_blocks(off, family, denoiser, lambda _: None, 1, reported.append):
        assert not any("forward" in vars(block) for block in blocks)
    assert len(reported) == 1


def test_the_first_pass_with_other_sizes_is_warm_up() -> None:
    layer = nn.Linear(2, 2)
    with compiled_sampling._timed_passes(layer, torch.device("cpu")) as times:
        for rows in (3, 3, 3, 1, 1):
            layer(torch.zeros(rows, 2))
    layer(torch.zeros(3, 2))
    assert (len(times.warm_up_s), len(times.steady_s)) == (2, 3)


def test_dora_cannot_be_compiled_unless_it_is_merged() -> None:
    layer = nn.Linear(2, 2)
    layer.use_dora = {"default": True}  # type: ignore[assignment]
    with pytest.raises(Refused, match=r"which torch cannot compile\. Add merge"):
        refuse_uncompilable(nn.Sequential(layer))
    layer.merged = True  # type: ignore[assignment]
    refuse_uncompilable(nn.Sequential(layer))


def test_a_machine_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match=r"a C\+\+ compiler, and none is on the PATH. Install g\+\+"):
        check_compiler(torch.device("cpu"))
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(Refused, match="and CXX=icpx is not on the PATH"):
        sampling_setup(SamplingChoice(device="cpu", compile="regional"))
    sampling_setup(SamplingChoice(device="cpu"))
