"""How many bytes are alive in a forward and backward pass, storage by storage, as the tracer counts them."""

import gc
from dataclasses import dataclass

from torch import Tensor
from torch.utils._pytree import tree_leaves

from foretune.accelerator.copies import watching_host
from foretune.data.batch import Batch
from foretune.trace.recorder import Allocation, Recorder
from tests.step.small_steps import SmallStep, made_batch


@dataclass(frozen=True)
class LiveBytes:
    """Bytes beyond those that were there before; those that wait on the host count apart."""

    kept: int
    """Between forward and backward pass."""
    peak: int
    left: int
    """After the backward pass, without the gradients."""
    on_host: int
    """Most that waited on the host."""


def live_bytes(small: SmallStep, size: int = 2) -> LiveBytes:
    batch = made_batch(small.family, size)
    recorder = Recorder(lambda _: None)
    on_host: set[int] = set()
    for tensor in (*small.step.denoiser.parameters(), *small.step.denoiser.buffers(), *_tensors(batch)):
        recorder.adopt(tensor)
    with recorder, watching_host(lambda copy: on_host.add(recorder.number_of(copy))):
        recorder.phase = "forward"
        with small.step.around_forward():
            loss = small.step.loss(batch)
        recorder.phase = "backward"
        loss.backward()
        del loss
        gc.collect()
        recording = recorder.finish()
    sizes: dict[int, int] = {}
    kept = peak = live = live_on_host = most_on_host = 0
    for event in recording.events:
        if isinstance(event, Allocation):
            sizes[event.number] = event.num_bytes if event.place.phase != "setup" else 0
        change = sizes[event.number] if isinstance(event, Allocation) else -sizes[event.number]
        if event.number in on_host:
            live_on_host += change
        else:
            live += change
        peak, most_on_host = max(peak, live), max(most_on_host, live_on_host)
        if event.place.phase == "forward":
            kept = live
    gradients = sum(p.grad.nbytes for p in small.step.trained.values() if p.grad is not None)
    return LiveBytes(kept, peak, live - gradients, most_on_host)


def _tensors(batch: Batch) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(vars(batch)) if isinstance(leaf, Tensor)]
