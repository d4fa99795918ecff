"""Compiled blocks while a model is sampled, with what they cost at the start and when they have paid for it."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from foretune.accelerator.timing import wait_for
from foretune.core.errors import Refused
from foretune.core.units import duration_text
from foretune.models.family import Family
from foretune.stats.break_even import steps_to_pay
from foretune.step.levers.compiling import apply_compile
from foretune.training.sampling_setup import SamplingSetup

_PLAIN_STEPS = 4
"""Denoising steps before blocks are compiled, of which the first warms up."""


@dataclass
class _PassTimes:
    """Seconds of each pass of a denoiser. The first pass with inputs of new sizes warms up, or compiles."""

    warm_up_s: list[float] = field(default_factory=list)
    steady_s: list[float] = field(default_factory=list)
    sizes: set[tuple[torch.Size, ...]] = field(default_factory=set)

    @property
    def num_passes(self) -> int:
        return len(self.warm_up_s) + len(self.steady_s)


@contextmanager
def _timed_passes(denoiser: nn.Module, device: torch.device) -> Iterator[_PassTimes]:
    found = _PassTimes()
    began_s = 0.0

    def begin(*_: Any) -> None:
        nonlocal began_s
        wait_for(device)
        began_s = time.perf_counter()

    def end(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], __: Any) -> None:
        wait_for(device)
        taken_s = time.perf_counter() - began_s
        sizes = tuple(value.shape for value in (*args, *named.values()) if isinstance(value, Tensor))
        (found.steady_s if sizes in found.sizes else found.warm_up_s).append(taken_s)
        found.sizes.add(sizes)

    hooks = (
        denoiser.register_forward_pre_hook(begin, with_kwargs=True),
        denoiser.register_forward_hook(end, with_kwargs=True),
    )
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def compiled_blocks(
    setup: SamplingSetup,
    family: Family,
    denoiser: nn.Module,
    try_out: Callable[[int], object],
    num_images: int,
    report: Callable[[str], None],
) -> Iterator[None]:
    """Compiles the repeated blocks, if requested, while `num_images` are sampled; then reports what that took.

    `try_out` samples a first batch with so many denoising steps: before compiling, for the time of an uncompiled one.
    """
    if setup.compile == "off":
        yield
        return
    refuse_uncompilable(denoiser)
    with _timed_passes(denoiser, setup.device) as plain:
        try_out(_PLAIN_STEPS)
    blocks = family.blocks(denoiser)
    apply_compile(blocks)
    try:
        with _timed_passes(denoiser, setup.device) as compiled:
            yield
    finally:
        for block in blocks:
            del block.forward  # the instance's attribute: the class's own is there again
    report(_cost_sentence(plain, compiled, num_images))


def refuse_uncompilable(denoiser: nn.Module) -> None:
    """Raises for adapters that torch cannot compile."""
    for layer in denoiser.modules():
        if any(getattr(layer, "use_dora", {}).values()) and not getattr(layer, "merged", False):
            raise Refused(
                "peft's DoRA asks in each pass of what kind a weight is, which torch cannot compile. Add merge, which "
                "leaves no adapter to compile, or leave compile off"
            )


def _cost_sentence(plain: _PassTimes, compiled: _PassTimes, num_images: int) -> str:
    if not compiled.steady_s or not plain.steady_s:
        return (
            f"Compiled blocks: {duration_text(sum(compiled.warm_up_s))} for the first passes of the denoiser, and no "
            "other was made. A break-even needs more denoising steps."
        )
    pass_s, plain_s = statistics.median(compiled.steady_s), statistics.median(plain.steady_s)
    warm_up_s = sum(compiled.warm_up_s) - pass_s * len(compiled.warm_up_s)
    text = (
        f"Compiled blocks: {duration_text(max(warm_up_s, 0.0))} of warm-up. A pass of the denoiser takes "
        f"{duration_text(pass_s)}, {duration_text(plain_s)} uncompiled (measured once)."
    )
    # Guidance may take two passes in each denoising step.
    passes = steps_to_pay(warm_up_s, plain_s, pass_s)
    if passes is None:
        return f"{text} No break-even: compiled passes are not faster here."
    images = ceil(passes * num_images / compiled.num_passes)
    return f"{text} Break-even after about {_rounded(passes)} passes of the denoiser ({_rounded(images)} images)."


def _rounded(num: int) -> str:
    """Two digits: single times have no more."""
    return f"{float(f'{num:.2g}'):,.0f}"
