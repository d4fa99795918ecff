"""Where the first NaN or infinite value of a failed run comes from: a weight, an input, or a layer.

Costs nothing while all is well. After a failure, what a run keeps in memory is searched first; then the steps since
the last checkpoint are repeated with a check behind every layer. Draws are functions of the step, so it happens again
unless the machine itself computes differently from one time to the next.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from foretune.choices.schedule import learning_rate
from foretune.data.batch import Batch
from foretune.data.maker import BatchMaker
from foretune.step.training_step import TrainingStep
from foretune.training.checkpoints import CheckpointStore, NoGoodCheckpoint
from foretune.training.not_finite import NotFinite, first_not_finite, is_finite
from foretune.training.preparing import Prepared
from foretune.training.state import check, components, place, restore

_MOST_REPEATED_STEPS = 200


def explained(
    failure: NotFinite, prepared: Prepared, store: CheckpointStore | None, wants_stop: Callable[[], bool]
) -> list[str]:
    """Sentences: where it begins, or why that is not known, and what to do.

    Repeating steps changes the weights in memory, which are lost anyway.
    """
    damaged = None if failure.step is None else _damaged_base(prepared) or _damaged_input(prepared, failure.step)
    if damaged is not None:
        return [damaged]
    advice = "Try a lower optimizer.lr, or train.precision=bf16"
    if failure.step is None or store is None or prepared.ranks.size > 1:
        return [advice]
    return [_repeated(prepared, store, failure.step, wants_stop), advice]


def _damaged_base(prepared: Prepared) -> str | None:
    trained = {id(weight) for weight in prepared.step.trained.values()}
    named = chain(prepared.step.denoiser.named_parameters(), prepared.step.denoiser.named_buffers())
    name = first_not_finite((name, tensor) for name, tensor in named if id(tensor) not in trained)
    if name is None:
        return None
    return f"{name} of the base model holds NaN or infinite values. Download the model again"


def _damaged_input(prepared: Prepared, step: int) -> str | None:
    maker = prepared.batch_maker
    if not isinstance(maker, BatchMaker):
        return None  # a bench made the inputs itself
    for batch in _batches(prepared, step):
        latents = batch.moments if batch.moments is not None else batch.images
        for row, index in enumerate(batch.indices):
            if latents is not None and not is_finite(latents[row]):
                return f"The latents of {maker.source.name(index)} hold NaN or infinite values"
            for tensor in (batch.conditioning or {}).values():
                if not is_finite(tensor[row]):
                    return f"The embeddings of the caption {batch.captions[row]!r} hold NaN or infinite values"
    return None


def _repeated(prepared: Prepared, store: CheckpointStore, failed: int, wants_stop: Callable[[], bool]) -> str:
    step = prepared.step
    has_clock = prepared.experiment.train.seconds is not None
    try:
        found = store.read_newest(components(step), lambda one: check(step, one, has_clock=has_clock), place(step))
    except NoGoodCheckpoint:
        found = None
    if found is None:
        return "The layer is unknown: there is no earlier checkpoint to repeat the steps from"
    checkpoint, _ = found
    first = checkpoint.step
    if failed - first >= _MOST_REPEATED_STEPS:
        return (
            f"The layer was not looked for: the last checkpoint is {failed + 1 - first} steps earlier (at most "
            f"{_MOST_REPEATED_STEPS} are repeated; save.every sets how often a checkpoint is saved)"
        )
    restore(step, checkpoint)
    return _first_value(prepared, range(first, failed + 1), wants_stop)


def _first_value(prepared: Prepared, numbers: range, wants_stop: Callable[[], bool]) -> str:
    """Makes the steps of these numbers again, with a check behind every layer."""
    step, accumulation = prepared.step, prepared.experiment.train.gradient_accumulation
    overflows = False
    with _watching(step) as seen:
        for number in numbers:
            if wants_stop():
                return "The search for the layer was stopped"
            if (name := first_not_finite(step.trained.items())) is not None:
                return f"{name} is the first weight with NaN or infinite values, before step {number + 1}"
            lr = learning_rate(prepared.experiment.optimizer, number, prepared.num_steps)
            outcome = step(number, lr, _batches(prepared, number), accumulation)
            if seen.first is not None:
                return f"{seen.first} is the first with NaN or infinite values, in step {number + 1}"
            overflows = not all(is_finite(value) for value in (outcome.loss, outcome.grad_norm) if value is not None)
    if overflows:
        return "The output of every layer and every gradient is finite: the loss or the gradient norm overflows"
    return (
        f"The steps from {numbers[0] + 1} to {numbers[-1] + 1} were repeated from the last checkpoint and gave finite "
        "values: this machine does not compute the same each time. Run foretune doctor, and check its memory and "
        "cooling"
    )


def _batches(prepared: Prepared, step: int) -> Iterator[Batch]:
    accumulation = prepared.experiment.train.gradient_accumulation
    for micro in range(accumulation):
        batch = prepared.batch_maker[step * accumulation + micro]
        yield prepared.encoders.ready(batch, prepared.device)


@dataclass
class _Seen:
    first: str | None = None
    """What had the first value that is not finite."""
    handles: list[Any] = field(default_factory=list)

    def look(self, what: str, value: Any) -> bool:
        """Whether this is the first."""
        if self.first is not None or not isinstance(value, Tensor) or is_finite(value):
            return False
        self.first = what
        return True


@contextmanager
def _watching(step: TrainingStep) -> Iterator[_Seen]:
    """Checks the output of every layer, and the gradient of every trained weight, as they are computed.

    Where the loss is scaled, infinite gradients are normal: the step is skipped and the scale lowered.
    """
    seen = _Seen()

    def output_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            for value in output if isinstance(output, (tuple, list)) else (output,):
                if seen.look(f"The output of {name}", value):
                    weight = first_not_finite(module.named_parameters(recurse=False))
                    seen.first = seen.first if weight is None else f"{name}.{weight}"

        return hook

    def gradient_hook(name: str) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            seen.look(f"The gradient of {name}", gradient)

        return hook

    for name, module in step.denoiser.named_modules():
        if next(module.children(), None) is None:
            seen.handles.append(module.register_forward_hook(output_hook(name)))
    if not step.scaler.is_enabled():
        for name, weight in step.trained.items():
            seen.handles.append(weight.register_hook(gradient_hook(name)))
    try:
        with torch.compiler.set_stance("force_eager"):
            yield seen
    finally:
        for handle in seen.handles:
            handle.remove()
