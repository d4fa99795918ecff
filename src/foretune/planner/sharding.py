"""Memory of one of several devices: sharded weights as FSDP2 holds and gathers them, gradients as DDP holds them.

The rules are those of `torch.distributed.fsdp.fully_shard` around each block and around the rest of the model:

- A device keeps its part of weights, gradients, optimizer state and EMA.
- Before a block runs, its weights are gathered into a buffer and copied from there into tensors of their own. In the
  forward pass the buffer is freed when the next block is gathered. In the backward pass it is freed at once, but the
  next block's buffer is filled ahead.
- After a block's backward pass, its gradients are copied into a buffer and reduced from there into this device's part.
  The buffer is freed when the next block's gradients are reduced.
- Weights outside the blocks stay gathered from the start of the forward pass to the end of the backward pass.
- The fused optimizer that updates shards has no temporaries.
- With FSDP2's mixed precision whole weights and whole gradients are bf16. What a device keeps is fp32, and gradients
  are summed in fp32.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from foretune.choices.running import Parallel
from foretune.core.values.step_trace import NEVER, StepTrace
from foretune.core.vocabulary import LASTING, WEIGHTS, MemoryPart, StepPhase
from foretune.planner.swapping import SwapStorage

_NEVER_WIDER = (MemoryPart.FROZEN_WEIGHTS, MemoryPart.EMA)
"""Of these the trace has the bytes that a shard is made of."""


def num_shards(parallel: Parallel) -> int:
    """Over how many devices one copy of the model is divided."""
    if parallel.sharding == "none":
        return 1
    if parallel.sharding == "full":
        return parallel.devices
    assert parallel.shard_devices is not None, "a plan does not know the devices of a node"
    return parallel.shard_devices


@dataclass(frozen=True)
class Gathering:
    """When a group of weights, of a block or of the rest, is gathered and its gradients are reduced."""

    forward: tuple[int, int]
    """The weights are there from and until."""
    forward_buffer: tuple[int, int]
    backward: tuple[int, int] | None
    """The weights are there again; None if they stayed."""
    backward_buffer: tuple[int, int] | None
    gradients_until: int
    """The end of the whole gradients, when their sum over all devices is being made."""
    reducing: tuple[int, int]
    """The buffer that they are sent from."""
    reduced_from: int
    """The beginning of this device's part."""


def sharded(
    storages: Iterable[SwapStorage], num_shards: int, when: Gathering, *, accumulates: bool, widening: int = 1
) -> Iterator[SwapStorage]:
    """Yields the storages of a group on one of the devices that share it.

    `widening`: how many times the bytes of the trace a shard has, gradients and optimizer state included.
    """
    weight_bytes = gradient_bytes = 0
    for storage in storages:
        factor = 1 if storage.category in _NEVER_WIDER else widening
        part = storage._replace(num_bytes=-(-storage.num_bytes * factor // num_shards))
        if storage.category == MemoryPart.GRADIENTS:
            gradient_bytes += storage.num_bytes
            yield storage._replace(released=when.gradients_until, released_in=StepPhase.BACKWARD)
            if accumulates:
                # The part of earlier passes is there; that of this pass is added to it.
                yield part._replace(made=0)
                end = when.reducing[1]
                yield part._replace(made=when.reduced_from, released=end, released_in=StepPhase.BACKWARD)
            else:
                yield part._replace(made=when.reduced_from)
        elif storage.category in LASTING and storage.released is None:
            yield part
            if storage.category in WEIGHTS:
                weight_bytes += storage.num_bytes
                yield from _gathered(storage, when)
        elif storage.made_in != StepPhase.OPTIMIZER:
            # Shards are updated and clipped in place (`step.optimizers.adamw`, `step.clipping`).
            yield storage
    yield from _buffers(weight_bytes, gradient_bytes * widening, when)


def gathered_bytes(trace: StepTrace, sizes: tuple[float, float, float, float]) -> int:
    """Returns the most bytes of whole weights in a forward pass: those outside the blocks, a block, and the buffers of
    this block and of the one before.
    """
    by_group = [
        sum(
            trace.growths[storage.growth].at(sizes)
            for storage in storages
            if trace.categories[storage.category] in WEIGHTS and storage.released.phase == NEVER
        )
        for storages in (trace.outside, *(kind.of_block(0, kind.count) for kind in trace.kinds))
    ]
    return round(by_group[0] + 3 * max(by_group[1:], default=0.0))


def _gathered(weight: SwapStorage, when: Gathering) -> Iterator[SwapStorage]:
    num_bytes, part = weight.num_bytes, MemoryPart.GATHERED_WEIGHTS
    if when.backward is None:
        yield SwapStorage(*when.forward, num_bytes, part, StepPhase.FORWARD, StepPhase.BACKWARD)
        return
    yield SwapStorage(*when.forward, num_bytes, part, StepPhase.FORWARD, StepPhase.FORWARD)
    yield SwapStorage(*when.backward, num_bytes, part, StepPhase.BACKWARD, StepPhase.BACKWARD)


def _buffers(weight_bytes: int, gradient_bytes: int, when: Gathering) -> Iterator[SwapStorage]:
    part = MemoryPart.COMMUNICATION
    yield SwapStorage(*when.forward_buffer, weight_bytes, part, StepPhase.FORWARD, StepPhase.FORWARD)
    if when.backward_buffer is not None:
        yield SwapStorage(*when.backward_buffer, weight_bytes, part, StepPhase.BACKWARD, StepPhase.BACKWARD)
    if gradient_bytes:
        yield SwapStorage(*when.reducing, gradient_bytes, part, StepPhase.BACKWARD, StepPhase.BACKWARD)
