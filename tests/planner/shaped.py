"""Shapes for traces that were recorded without them, so that tests of times do not depend on which have them."""

import pytest

from foretune.planner.timing import work_times
from foretune.planner.timing.work_times import OperatorRow

_HEAD = 64.0
_plain_row = work_times._row


def _shaped_row(*arguments: object) -> OperatorRow:
    """Square products, and attention of one head, with the FLOPs of the trace."""
    row = _plain_row(*arguments)  # type: ignore[arg-type]
    if row.shape or not row.flops or row.operator not in ("matmul", "conv", "attention"):
        return row
    each = row.flops / row[3]
    if row.operator == "attention":
        tokens = (each / 4 / _HEAD) ** 0.5
        return row._replace(shape=(1.0, 1.0, tokens, tokens, _HEAD))
    side = (each / 2) ** (1 / 3)
    return row._replace(shape=(1.0, side, side, side))


@pytest.fixture(autouse=True)
def _with_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_times, "_row", _shaped_row)


__all__ = ["_with_shapes"]
