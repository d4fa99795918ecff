"""Optimizers and averages on the host read no copy before it has arrived, whatever the weights' dtype."""

import pytest
import torch
from torch import nn

from foretune.choices import memory_pieces
from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.step.ema import MovingAverage
from foretune.step.optimizing import build_optimizer
from tests.step.late_copies import late_copies
from tests.step.test_optimizers import DTYPES, KINDS, LEVERS, choice, made_weights, run


def trained(kind: str, weights: str, *, in_backward: bool) -> list[nn.Parameter]:
    found = made_weights(DTYPES[weights])
    levers = LEVERS["host"].model_copy(update={"fused_backward": in_backward})
    run(build_optimizer(choice(kind), found, levers=levers), found, range(3))
    return found


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_late_copies_change_no_optimizer(kind: str, weights: str, in_backward: bool) -> None:
    if OPTIMIZER_SPECS[kind].finds_lr and in_backward:
        pytest.skip(f"{kind} needs all gradients at once; refused")
    expected = trained(kind, weights, in_backward=in_backward)
    with late_copies() as copies:
        found = trained(kind, weights, in_backward=in_backward)
    assert copies.num_late >= 3 * len(expected)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("group_bytes", [1, 10_000, 1 << 30])
@pytest.mark.parametrize("weights", DTYPES)
def test_late_copies_change_no_average(weights: str, group_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pieces, "_SMALLEST_GROUP_BYTES", group_bytes)
    monkeypatch.setattr(memory_pieces, "_NUM_AVERAGED_GROUPS", 1 << 40)
    named = {str(index): weight for index, weight in enumerate(made_weights(DTYPES[weights]))}
    device = MovingAverage(named, 0.9)
    with late_copies() as copies:
        host = MovingAverage(named, 0.9, on_host=True)
        for _ in range(3):
            with torch.no_grad():
                for weight in named.values():
                    weight.mul_(1.5)
            device.update()
            host.update()
    assert copies.num_late == 4 * len(named)
    for name, average in device.average.items():
        torch.testing.assert_close(average, host.average[name], rtol=0, atol=0)
