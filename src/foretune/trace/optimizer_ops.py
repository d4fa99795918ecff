"""Values that optimizers read from their tensors, and sizes they decide by, for fake tensors."""

from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.overrides import TorchFunctionMode

from foretune.step.optimizers.base import Direct, Updater
from foretune.step.optimizers.in_backward import InBackward
from foretune.step.optimizers.on_host import OnHost

_ANSWERS: dict[Any, bool | float] = {
    Tensor.__bool__: False,
    Tensor.item: 1.0,
    Tensor.__float__: 1.0,
}


class AssumedNumbers(TorchFunctionMode):
    """Active while an optimizer is created and while it updates.

    Prodigy reads how far the weights have moved: the distance is nonzero. 8-bit optimizers compute their quantisation
    table: all entries are one.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _ANSWERS:
            return func(*args, **(kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            return _ANSWERS[func]


def assume_large_weights(updater: Updater) -> None:
    """Treats all weights as large. 8-bit optimizers store fp32 states for weights below 4,096 elements. Adapters are
    recorded at small ranks, and the result must be valid for larger ones. Plans decide by the size at the requested
    rank (`planner.block_events`).
    """
    match updater:
        case InBackward():
            for one in updater.updaters.values():
                assume_large_weights(one)
        case OnHost():
            assume_large_weights(updater.inner)
        case Direct():
            sizes = getattr(updater.inner, "args", None)
            if sizes is not None and hasattr(sizes, "min_8bit_size"):
                sizes.min_8bit_size = 0
