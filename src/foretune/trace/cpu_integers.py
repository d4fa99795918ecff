"""Memory that bitsandbytes' operators on 8-bit integers use inside, where they are made of torch's own: on CPUs."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

Rule = Callable[[tuple[Any, ...], list[Tensor]], int]


def _rounding(args: tuple[Any, ...], results: list[Tensor]) -> int:
    """Rows widened to fp32, and scaled so; the integers and the scales come when those are gone."""
    rows: Tensor = args[0]
    return 8 * rows.numel() + 4 * rows.shape[0] - results[0].numel()


def _scaling(_: tuple[Any, ...], results: list[Tensor]) -> int:
    """Sums widened to fp32, the scale of each, and their product; the answer comes when those are gone."""
    (answer,) = results
    return (12 - answer.element_size()) * answer.numel()


INTEGER_RULES: dict[str, Rule] = {"int8_vectorwise_quant": _rounding, "int8_mm_dequant": _scaling}
