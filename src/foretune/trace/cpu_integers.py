"""Workspace of bitsandbytes' int8 operators on CPUs, where they consist of torch operators."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

Rule = Callable[[tuple[Any, ...], list[Tensor]], int]


def _rounding(args: tuple[Any, ...], results: list[Tensor]) -> int:
    """Counts the rows cast to fp32 and their scaled copy; integers and scales are allocated after both are freed."""
    rows: Tensor = args[0]
    return 8 * rows.numel() + 4 * rows.shape[0] - results[0].numel()


def _scaling(_: tuple[Any, ...], results: list[Tensor]) -> int:
    """Counts the sums cast to fp32, the scales and their product; the output is allocated after they are freed."""
    (answer,) = results
    return (12 - answer.element_size()) * answer.numel()


INTEGER_RULES: dict[str, Rule] = {"int8_vectorwise_quant": _rounding, "int8_mm_dequant": _scaling}
