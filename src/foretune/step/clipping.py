"""Clips gradients by the norm of all of them together."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from foretune.step.engine import is_sharded, own_part

_LEAST = 1e-6
"""torch adds as much to the norm before it divides by it."""


def clip_gradients(weights: Iterable[nn.Parameter], max_norm: float, *, foreach: bool | None) -> Tensor:
    """Scales gradients so that their norm is at most `max_norm`; returns the norm before, without waiting for it."""
    weights = list(weights)
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if any(map(is_sharded, gradients)):
        return _clip_shards(gradients, max_norm)
    return nn.utils.clip_grad_norm_(weights, max_norm, foreach=foreach)


def _clip_shards(gradients: Sequence[Tensor], max_norm: float) -> Tensor:
    """With a few operators and one message of one number. torch would send the norm of every tensor."""
    from torch import distributed as dist
    from torch.distributed.tensor import DTensor

    first = gradients[0]
    assert isinstance(first, DTensor), "FSDP2 shards all gradients"
    parts = [part for part in map(own_part, gradients) if part.numel()]
    square = torch.zeros((), device=first.device)
    if parts:
        square += torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float32)).square().sum()
    for axis, placement in enumerate(first.placements):
        if placement.is_shard():
            # Copies of a shard are equal, so that only the shards of one copy are added up.
            dist.all_reduce(square, group=first.device_mesh.get_group(axis))
    norm = square.sqrt()
    factor = (max_norm / (norm + _LEAST)).clamp(max=1.0)
    if parts:
        torch._foreach_mul_(parts, factor.to(parts[0].dtype))
    return norm
