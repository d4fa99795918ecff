"""The kernel of attention: the asked one computes, everywhere, or nothing does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foretune.core.errors import Refused
from tests.step.levers.deep_steps import LORA, deep_step, difference, loss_and_gradients
from tests.step.small_steps import made_batch

TinyPipeline = Callable[..., Path]

DEPTHS: dict[str, tuple[int, ...]] = {"flux": (1, 1), "sd3": (1, 1), "ddpm": ()}


class Kernels(TorchDispatchMode):
    """Counts forward passes of fused attention, and the softmax of scores that are written out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_fused = self.num_written_out = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.num_fused += name == "_scaled_dot_product_flash_attention_for_cpu"
        self.num_written_out += name == "_safe_softmax"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize("share", [0, 1])
def test_the_asked_kernel_computes(name: str, share: int, tiny_pipeline: TinyPipeline) -> None:
    """Computed again, too: that happens outside of the model's forward pass."""
    found = {}
    for kernel in ("auto", "flash", "math"):
        small = deep_step(
            tiny_pipeline(name), DEPTHS[name], LORA, levers={"attention": kernel, "gradient_checkpointing": share}
        )
        with Kernels() as kernels:
            found[kernel] = loss_and_gradients(small)
        if kernel == "math":
            assert (kernels.num_fused, kernels.num_written_out > 0) == (0, True)
        else:
            assert (kernels.num_fused > 0, kernels.num_written_out) == (True, 0)
    for kernel in ("flash", "math"):
        assert max(difference(found[kernel], found["auto"])) < 1e-5


def test_it_computes_in_sampling_too(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("flux"), DEPTHS["flux"], LORA, levers={"attention": "math"})
    with torch.no_grad(), Kernels() as kernels:
        small.step.denoiser.eval()
        small.step.loss(made_batch(small.family, 1))
    assert kernels.num_fused == 0
    assert kernels.num_written_out == 2


@pytest.mark.parametrize("kernel", ["efficient", "cudnn"])
def test_a_kernel_that_cannot_is_never_replaced(kernel: str, tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("sd3"), DEPTHS["sd3"], LORA, levers={"attention": kernel})
    with pytest.raises(Refused, match=rf"the {kernel} kernel cannot.*Nearest: levers\.attention=auto"):
        loss_and_gradients(small)


def test_other_errors_stay_what_they_are(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("sd3"), DEPTHS["sd3"], LORA, levers={"attention": "math"})
    with pytest.raises(RuntimeError, match=r"must match|size") as caught:
        small.step.denoiser(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 7), torch.ones(1, 5), torch.ones(1))
    assert not isinstance(caught.value, Refused)
