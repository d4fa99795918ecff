"""Applies all levers of an experiment, in the one order in which they can be combined."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from foretune.choices.checkpointing import chosen_segments, units
from foretune.choices.swapping import SwapSchedule, swap_schedule
from foretune.choices.training import Levers
from foretune.core.errors import Refused
from foretune.models.family import Family
from foretune.step.levers.attention import apply_attention
from foretune.step.levers.channels_last import apply_channels_last
from foretune.step.levers.checkpointing import apply_checkpointing
from foretune.step.levers.compiling import apply_compile
from foretune.step.levers.offloading import Traffic, activations_on_host, offload_attention
from foretune.step.levers.segments import ContextPair
from foretune.step.levers.swapping import SwappedBlocks


@dataclass(frozen=True)
class AppliedLevers:
    """What the levers need when the denoiser is placed on a device and at each step."""

    around_forward: Callable[[], AbstractContextManager[object]] = nullcontext
    """Surrounds each forward pass of a training step."""
    swapped: SwappedBlocks | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    """The levers as resolved for this model, for the run's record."""

    def place(self, denoiser: nn.Module, device: torch.device) -> None:
        """Moves the denoiser to the device; swapped blocks stay on the host."""
        if self.swapped is not None:
            self.swapped.place(denoiser, device)
        else:
            denoiser.to(device)


def apply_levers(
    choice: Levers,
    family: Family,
    denoiser: nn.Module,
    *,
    keeps_rng: bool,
    contexts: Callable[[], ContextPair] = noop_context_fn,
) -> AppliedLevers:
    """Applies the levers to a denoiser on any device, including meta, that already has its adapters.

    Each lever wraps a block as the previous ones left it: compiled code is innermost, then the choice of the attention
    kernel, then the transfer of swapped weights, and checkpointing repeats all of it.

    `keeps_rng`: forward passes draw random numbers, so a recomputed one must draw the same. `contexts` returns the
    contexts around a block's forward pass and its recomputation, for observers.
    """
    blocks = family.blocks(denoiser)
    effective: dict[str, Any] = {"num_blocks": len(blocks)}
    if choice.channels_last:
        effective["num_channels_last_convolutions"] = apply_channels_last(denoiser)
    if choice.compile == "regional":
        apply_compile(blocks)
        effective["num_compiled_blocks"] = len(blocks)
    if choice.attention != "auto":
        apply_attention(choice.attention, denoiser, blocks)
        effective["attention"] = choice.attention
    offloads_attention = choice.activation_offload and choice.activation_offload_parts == "attention"
    if offloads_attention:
        # Inside the checkpointed function, so that the hooks of checkpointing do not see what attention saves.
        effective["num_offloaded_attentions"] = _offload_attention(blocks, family)
    swapped = _swap(choice, family, blocks, effective)
    groups = _recomputed_groups(choice, family, blocks, effective)
    apply_checkpointing(groups, keeps_rng=keeps_rng, moves_inputs=choice.activation_offload, contexts=contexts)
    around_forward: Callable[[], AbstractContextManager[object]] = nullcontext
    if choice.activation_offload and not offloads_attention:
        around_forward = partial(activations_on_host, denoiser, Traffic())
        effective["activation_offload"] = True
    return AppliedLevers(around_forward, swapped, effective)


def _offload_attention(blocks: tuple[nn.Module, ...], family: Family) -> int:
    num_offloaded = sum(offload_attention(block) for block in blocks)
    if not num_offloaded:
        raise Refused(
            f"levers.activation_offload_parts: the blocks of this {family.name} model have no attention. "
            "Nearest: levers.activation_offload_parts=blocks"
        )
    return num_offloaded


def _swap(
    choice: Levers, family: Family, blocks: tuple[nn.Module, ...], effective: dict[str, Any]
) -> SwappedBlocks | None:
    if not choice.block_swap:
        return None
    schedule = _swap_schedule(choice, family, blocks)
    swapped = SwappedBlocks(tuple(blocks[index] for index in schedule.forward), schedule)
    effective["swapped_blocks"] = list(schedule.forward)
    effective["swapped_bytes"] = swapped.num_bytes()
    effective["block_swap_prefetch"] = schedule.prefetch
    return swapped


def _swap_schedule(choice: Levers, family: Family, blocks: tuple[nn.Module, ...]) -> SwapSchedule:
    if choice.block_swap > len(blocks):
        raise Refused(
            f"levers.block_swap: {choice.block_swap} blocks cannot be swapped, this model has {len(blocks)}. "
            f"Nearest: levers.block_swap={len(blocks)}"
        )
    return swap_schedule(units(_stacks(family, blocks), choice), choice.block_swap, choice.block_swap_prefetch)


def modules_on_host(choice: Levers, family: Family, denoiser: nn.Module) -> frozenset[str]:
    """Returns the names of the modules whose frozen weights stay on the host: those of swapped blocks."""
    if not choice.block_swap:
        return frozenset()
    blocks = family.blocks(denoiser)
    swapped = (blocks[number] for number in _swap_schedule(choice, family, blocks).forward)
    inside = {id(module) for block in swapped for module in block.modules()}
    return frozenset(name for name, module in denoiser.named_modules() if id(module) in inside)


def _stacks(family: Family, blocks: tuple[nn.Module, ...]) -> tuple[int, ...]:
    stacks = tuple(kind.count for kind in family.block_kinds()) or (len(blocks),)
    assert sum(stacks) == len(blocks), "the kinds of blocks are all blocks"
    return stacks


def _recomputed_groups(
    choice: Levers, family: Family, blocks: tuple[nn.Module, ...], effective: dict[str, Any]
) -> list[tuple[nn.Module, ...]]:
    """Returns the groups of modules that the experiment recomputes together."""
    chosen = chosen_segments(_stacks(family, blocks), choice)
    groups = [tuple(blocks[index] for index in segment) for segment in chosen]
    num_chosen = sum(len(segment) for segment in chosen)
    effective["num_checkpointed_blocks"] = num_chosen
    if choice.checkpoint_parts == "feed_forward" and chosen:
        parts = [family.feed_forwards(block) for group in groups for block in group]
        if not any(parts):
            raise Refused(
                f"levers.checkpoint_parts: the chosen blocks of this {family.name} model have no feed-forward part of "
                "their own. Nearest: levers.checkpoint_parts=blocks"
            )
        groups = [(part,) for of_block in parts for part in of_block]
        effective["num_checkpointed_blocks"] = 0
        effective["num_checkpointed_feed_forwards"] = len(groups)
        effective["num_blocks_without_feed_forward"] = sum(not of_block for of_block in parts)
    elif choice.checkpoint_segment > 1:
        effective["num_checkpointed_segments"] = len(groups)
    return groups
