"""How the processes of a run share one model: DDP, FSDP2 or HSDP of torch.distributed, or one process alone.

What only several processes need is imported where they need it: one process alone pays nothing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from foretune.choices.running import Sharding
from foretune.models.family import Family

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Engine:
    """What several processes add to a training step; the defaults are those of one process alone."""

    num_processes: int = 1
    rank: int = 0
    module: nn.Module | None = None
    """Called instead of the denoiser, if the engine wraps it."""
    without_sync: Callable[[], AbstractContextManager[object]] = nullcontext
    """Surrounds the passes of a step before its last one: gradients add up on each device and are not sent."""

    def synchronising(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Surrounds the forward and backward pass of one batch of a step."""
        return nullcontext() if is_last else self.without_sync()

    def mean(self, loss: Tensor) -> Tensor:
        """Returns the mean of a number over all processes, on the device; the host does not wait for it on a GPU."""
        if self.num_processes == 1:
            return loss
        import torch.distributed as dist

        total = loss.clone()
        dist.all_reduce(total)
        return total / self.num_processes


ALONE = Engine()
"""One process, no collective."""


def share(
    denoiser: nn.Module,
    family: Family,
    sharding: Sharding,
    device: torch.device,
    shard_devices: int | None = None,
    timeout_s: float | None = None,
    *,
    gathers_in_bf16: bool = False,
) -> Engine:
    """Lets all processes of the default group train one denoiser, which is whole in each of them.

    For DDP it is on its device; FSDP2 moves it there, block by block. Sharded weights become DTensors, so an optimizer
    must be built afterwards. Groups of devices wait as long as all of them do, or as `timeout_s` says.
    `gathers_in_bf16`: fp32 shards are rounded before they are sent; gradients are still summed in fp32.
    """
    import torch.distributed as dist

    num_processes, rank = dist.get_world_size(), dist.get_rank()
    if sharding == "none":
        # Frozen weights have no gradients to send, and those of swapped blocks are in host memory: DDP refuses a model
        # that is on devices of two types, but looks only at what it is not told to ignore.
        frozen = [name for name, weight in denoiser.named_parameters() if not weight.requires_grad]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(denoiser, frozen)
        wrapped = _FinalBuckets(
            denoiser,
            device_ids=[device] if device.type == "cuda" else None,
            # Every process has read the same files, which is checked: nothing has to be sent.
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        return Engine(num_processes, rank, wrapped, wrapped.no_sync)
    from torch.distributed.distributed_c10d import _set_pg_timeout
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = _mesh(num_processes, device, shard_devices if sharding == "hybrid" else None)
    if timeout_s is not None and mesh.ndim > 1:
        for group in mesh.get_all_groups():
            _set_pg_timeout(timedelta(seconds=timeout_s), group)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if gathers_in_bf16 else None,
        reduce_dtype=torch.float32 if gathers_in_bf16 else None,
        # Timesteps and rotary embeddings stay exact; autocast rounds what matrix products take.
        cast_forward_inputs=False,
    )
    for block in family.blocks(denoiser):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(denoiser, mesh=mesh, mp_policy=policy)
    # Gradients are reduced in every pass: to keep them whole until the last one would undo the sharding.
    return Engine(num_processes, rank)


class _FinalBuckets(DistributedDataParallel):
    """DDP whose first step sums gradients in the same buckets as all others.

    DDP forms new buckets after its first step, in the order in which gradients arrived. A bucket decides the
    order in which the ranks' values are added, so with three or more processes a resumed run, whose first step
    is another one, would differ in the last bit. Here the buckets are formed for good before the first step:
    from the last layer to the first, which is nearly that order.
    """

    def __init__(self, *arguments: Any, **choices: Any) -> None:
        super().__init__(*arguments, **choices)
        # Not part of torch's interface: without it a run trains as well, and a test says that it is missing.
        if hasattr(self.reducer, "_push_all_rebuilt_params"):
            self.reducer._push_all_rebuilt_params()
            self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> tuple[list[Any], list[bool]]:
        weights, are_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return weights[::-1], are_sparse[::-1]


def _mesh(num_processes: int, device: torch.device, shard_devices: int | None) -> "DeviceMesh":
    from torch.distributed.device_mesh import init_device_mesh

    if shard_devices is None:
        return init_device_mesh(device.type, (num_processes,))
    shape = (num_processes // shard_devices, shard_devices)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this process has a part."""
    loaded: Any = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Returns a tensor with all of its shards. All processes must call it."""
    if not is_sharded(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def sharded_like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Returns this process's part of a whole tensor that every process has, sharded as the weight is."""
    if not is_sharded(weight) or is_sharded(tensor) or tensor.shape != weight.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(weight, DTensor)
    # Without a source every process takes its part of what it has, and nothing is sent.
    return distribute_tensor(tensor.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)


def own_part(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor that this process has."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def own_shard(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]] | None:
    """Returns this process's part of a sharded tensor and its offset; None if it is empty or also that of a process
    before this one.
    """
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    places = tensor.device_mesh.get_coordinate()
    assert places is not None, "every process is part of the mesh"
    copies = [place for place, placement in zip(places, tensor.placements, strict=True) if placement.is_replicate()]
    part = tensor.to_local()
    if any(copies) or part.numel() == 0:
        return None
    (chunk,) = tensor.__create_chunk_list__()
    return part, tuple(chunk.offsets)


def empty_part(weight: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns a tensor without contents: sharded as the weight if it has its shape, else whole and on the host."""
    if is_sharded(weight) and tuple(weight.shape) == shape:
        return torch.empty_like(weight.detach(), dtype=dtype)
    return torch.empty(shape, dtype=dtype)


def sums_over_shards(sums: Mapping[str, int], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns sums over parts of tensors as sums over the whole ones. All processes must call it."""
    sharded = [name for name in sums if is_sharded(tensors[name])]
    if not sharded:
        return dict(sums)
    from torch.distributed.tensor import DTensor, Partial

    like = tensors[sharded[0]]
    assert isinstance(like, DTensor)
    parts = torch.tensor([sums[name] for name in sharded], device=like.device)
    # Each shard counts once, however many groups hold it.
    placements = [Partial() if placement.is_shard() else placement for placement in like.placements]
    totals = DTensor.from_local(parts, like.device_mesh, placements, run_check=False).full_tensor().tolist()
    return {**sums, **dict(zip(sharded, totals, strict=True))}


@contextmanager
def contents_replaced(
    model: nn.Module, weights: Mapping[str, nn.Parameter], by: Mapping[str, Tensor]
) -> Iterator[None]:
    """Puts other values in the place of a model's weights for a while, which come back bit for bit.

    Sharded weights are overwritten, because FSDP2 gathers them from memory of its own. It keeps what it has gathered of
    the outermost module until the next backward pass, so that this is given back. A weight whose dtype would change is
    left alone, and the model has another one meanwhile: torch would discard its gradient accumulator, on which DDP's
    hooks are, and DDP would never again send its gradient. Others only change places.
    """
    kept: dict[str, Tensor] = {}
    others: dict[nn.Parameter, nn.Parameter] = {}
    for name, value in by.items():
        weight = weights[name]
        if is_sharded(weight):
            kept[name] = weight.detach().clone()
            weight.data.copy_(value)
        elif value.dtype == weight.dtype:
            kept[name] = weight.data
            weight.data = value
        else:
            others[weight] = nn.Parameter(value, requires_grad=False)
    _replace(model, others)
    _give_back_gathered(model, weights)
    try:
        yield
    finally:
        _replace(model, {other: weight for weight, other in others.items()})
        for name, value in kept.items():
            if is_sharded(weights[name]):
                weights[name].data.copy_(value)
            else:
                weights[name].data = value
        _give_back_gathered(model, weights)


def _give_back_gathered(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
    """Has FSDP2 gather all weights again where it needs them next."""
    if not any(map(is_sharded, weights.values())):
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _replace(model: nn.Module, others: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Gives modules other parameters in the place of those that they have."""
    if not others:
        return
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight in others:
                module._parameters[name] = others[weight]
