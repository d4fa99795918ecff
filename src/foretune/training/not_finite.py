"""NaN and infinite values: found before they are saved, and named."""

from collections.abc import Iterable

from torch import Tensor

from foretune.core.errors import UserError
from foretune.step.engine import own_part

# Bounds what the check itself needs for a contiguous tensor: a copy of this many values.
_VALUES_AT_ONCE = 1 << 24


class NotFinite(UserError):
    """A NaN or infinite value where a run needs a finite one; nothing after it can be trusted."""

    def __init__(self, text: str, step: int | None = None) -> None:
        """`step` is the optimizer step that gave it, counted from 0."""
        super().__init__(text)
        self.step = step


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinite value; of a sharded one its part here is checked."""
    return next((name for name, tensor in tensors if not is_finite(tensor)), None)


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is a finite number. Waits for the device."""
    if not tensor.is_floating_point():
        return True
    values = own_part(tensor.detach())
    # float8 has NaN but no test for it.
    is_narrow = values.element_size() == 1
    parts = values.reshape(-1).split(_VALUES_AT_ONCE)
    return all(bool((part.float() if is_narrow else part).isfinite().all()) for part in parts)
