"""What forward passes are given that read values where there are none."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils.checkpoint import checkpoint

from foretune.trace.answers import AssumedData


def test_every_token_is_valid() -> None:
    with FakeTensorMode(), AssumedData():
        mask = torch.empty(3, 7, dtype=torch.bool)
        assert mask.sum(dim=1).tolist() == [7, 7, 7]
        assert mask.sum().item() == 21
        assert bool(mask.all())
        assert not torch.any(~mask)
        assert int(mask[0].sum()) == 7


def test_a_mask_picks_every_token_and_its_opposite_none() -> None:
    with FakeTensorMode(), AssumedData():
        tokens, mask = torch.empty(3, 7, 5), torch.empty(3, 7, dtype=torch.bool)
        assert tokens[mask].shape == (21, 5)
        assert tokens[~mask].shape == (0, 5)
        assert tokens[0][mask[0]].shape == (7, 5)
        assert tokens[:, mask[0]].shape == (3, 7, 5)
        assert torch.nonzero(mask).shape == (21, 2)
        assert [found.shape for found in torch.nonzero(mask, as_tuple=True)] == [(21,), (21,)]
        tokens[mask] = torch.empty(21, 5)


def test_computed_numbers_are_not_exactly_equal() -> None:
    """Whether an image was given is asked by comparing its embedding with zero."""
    with FakeTensorMode(), AssumedData():
        assert not torch.all(torch.empty(2, 4) == 0)


def test_routing_spreads_evenly() -> None:
    with FakeTensorMode(), AssumedData():
        _, chosen = torch.topk(torch.empty(11, 4), k=2, dim=-1)
        flat = chosen.view(-1)
        shares = [torch.empty(22, 3)[flat == expert].shape[0] for expert in range(4)]
    assert sum(shares) == 22
    assert max(shares) - min(shares) <= 1


def test_other_indices_and_sums_are_left_alone() -> None:
    with FakeTensorMode(), AssumedData():
        tokens = torch.empty(3, 7, 5)
        assert tokens[1:, None, ..., torch.tensor([0, 2])].shape == (2, 1, 7, 2)
        assert tokens.sum(dim=(0, 2)).shape == (7,)


def test_a_question_that_is_not_foreseen_is_not_answered() -> None:
    with FakeTensorMode(), AssumedData():
        with pytest.raises(DataDependentOutputException):
            torch.empty(3).max().item()
        with pytest.raises(DataDependentOutputException):
            bool(torch.empty(3).mean() > 0)


def test_nothing_stays_changed() -> None:
    with FakeTensorMode(), AssumedData():
        pass
    with FakeTensorMode():
        mask = torch.empty(3, dtype=torch.bool)
        with pytest.raises(DynamicOutputShapeException):
            torch.nonzero(mask)
        with pytest.raises(DataDependentOutputException):
            mask.sum().item()
    real = torch.tensor([True, False])
    assert real.sum().item() == 1
    assert torch.arange(2)[real].tolist() == [0]


def test_answers_are_the_same_where_a_block_is_recomputed() -> None:
    assumed = AssumedData()

    def block(tokens: Tensor, mask: Tensor) -> Tensor:
        return tokens[mask].square()

    with FakeTensorMode(), assumed:
        tokens = torch.empty(4, 2, requires_grad=True)
        mask = ~torch.empty(4, dtype=torch.bool)
        out = checkpoint(block, tokens, mask, use_reentrant=False, context_fn=lambda: (nullcontext(), assumed))
        out.sum().backward()
    assert out.shape == (0, 2)
    assert tokens.grad is not None
    assert tokens.grad.shape == (4, 2)
