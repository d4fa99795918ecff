"""All levers of an experiment, applied in the one order in which they go together."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from foretune.choices.checkpointing import chosen_segments
from foretune.choices.swapping import chosen_to_swap
from foretune.choices.training import Levers
from foretune.core.errors import Refused
from foretune.models.family import Family
from foretune.step.levers.attention import apply_attention
from foretune.step.levers.channels_last import apply_channels_last
from foretune.step.levers.checkpointing import apply_checkpointing
from foretune.step.levers.compiling import apply_compile
from foretune.step.levers.offloading import activations_on_host, offload_attention
from foretune.step.levers.segments import ContextPair
from foretune.step.levers.swapping import SwappedBlocks


@dataclass(frozen=True)
class AppliedLevers:
    """What levers leave to do when the denoiser is placed, and at each step."""

    around_forward: Callable[[], AbstractContextManager[object]] = nullcontext
    """Surrounds each forward pass of a training step."""
    swapped: SwappedBlocks | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    """What the levers came to on this model, for the record."""

    def place(self, denoiser: nn.Module, device: torch.device) -> None:
        """Brings the denoiser to where it runs."""
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
    """Changes the denoiser, which is on any device, meta included, and has its adapters already.

    Each lever wraps what those before it made of a block: compiled code is innermost, the kernel of attention is chosen
    around it, weights are brought around that, and checkpointing repeats all of it.

    `keeps_rng`: a forward pass draws random numbers, so that one which is computed again must draw the same.
    `contexts` gives what surrounds a block's forward pass and its recomputation, for those who watch.
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
        # Inside of checkpointing, whose own hooks then do not see what attention keeps.
        effective["num_offloaded_attentions"] = _offload_attention(blocks, family)
    swapped = _swap(choice, blocks, effective)
    groups = _recomputed_groups(choice, family, blocks, effective)
    apply_checkpointing(groups, keeps_rng=keeps_rng, moves_inputs=choice.activation_offload, contexts=contexts)
    around_forward: Callable[[], AbstractContextManager[object]] = nullcontext
    if choice.activation_offload and not offloads_attention:
        around_forward = partial(activations_on_host, denoiser)
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


def _swap(choice: Levers, blocks: tuple[nn.Module, ...], effective: dict[str, Any]) -> SwappedBlocks | None:
    if not choice.block_swap:
        return None
    if choice.block_swap > len(blocks):
        raise Refused(
            f"levers.block_swap: {choice.block_swap} blocks cannot be swapped, this model has {len(blocks)}. "
            f"Nearest: levers.block_swap={len(blocks)}"
        )
    chosen = chosen_to_swap(len(blocks), choice.block_swap)
    swapped = SwappedBlocks(tuple(blocks[index] for index in chosen))
    effective["swapped_blocks"] = list(chosen)
    effective["swapped_bytes"] = swapped.num_bytes()
    return swapped


def _recomputed_groups(
    choice: Levers, family: Family, blocks: tuple[nn.Module, ...], effective: dict[str, Any]
) -> list[tuple[nn.Module, ...]]:
    """Modules that are computed again together, by what was asked."""
    stacks = tuple(kind.count for kind in family.block_kinds()) or (len(blocks),)
    assert sum(stacks) == len(blocks), "the kinds of blocks are all blocks"
    chosen = chosen_segments(stacks, choice)
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
