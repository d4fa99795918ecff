"""What optimizers ask of their tensors, and the sizes they decide by, while there are no numbers."""

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
    """Active while an optimizer is made and while it updates.

    Prodigy reads how far the weights have come: some way, and nothing that is zero. 8-bit optimizers compute their
    table of numbers: all are one.
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
    """8-bit optimizers keep fp32 states of weights below 4,096 numbers. An adapter is recorded at small ranks, and what
    is found there is to hold for others; taken as large, each tensor that is small after all is missed by 6 bytes a
    number, 24 KiB at most.
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
