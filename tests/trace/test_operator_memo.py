"""Results of operators that are rebuilt are those that torch computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from foretune.choices.step_form import StepForm
from foretune.models.locating import family_from_catalogue
from foretune.trace.making import make_step_trace
from foretune.trace.operator_memo import FakeResults, OperatorMemo
from foretune.trace.recorder import Recorder


def look(tensor: Tensor) -> tuple[object, ...]:
    assert type(tensor) is FakeTensor
    storage = tensor.untyped_storage()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), tensor.device, storage.nbytes()


CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "fresh": lambda a, b: a + b,
    "broadcast": lambda a, b: a * b[:1],
    "transposed": lambda a, b: torch.relu(a.t()),
    "in place": lambda a, b: a.add_(b),
    "view": lambda a, b: a.view(-1),
    "view of a part": lambda a, b: a[1:, 2:],
    "view as another dtype": lambda a, b: a.view(torch.int32),
    "several": lambda a, b: torch.max(a, dim=1),
    "several views": lambda a, b: a.split(2),
    "list": lambda a, b: torch._foreach_mul([a, b], 2.0),
    "list in place": lambda a, b: torch._foreach_add_([a, b], 1.0),
    "factory": lambda a, b: torch.zeros(3, dtype=torch.float16),
    "to another dtype": lambda a, b: a.to(torch.bfloat16),
    "product": lambda a, b: a @ b.t(),
    "expanded": lambda a, b: a[:, None].expand(4, 3, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_from_memory_gives_what_torch_gives(name: str) -> None:
    mode, memo = FakeTensorMode(), OperatorMemo()
    recorder = Recorder(lambda _phase: None, fake_results=FakeResults(mode, memo))
    given = []
    for modes in ((mode,), (mode, recorder), (mode, recorder)):
        with modes[0]:
            a, b = torch.empty(4, 6), torch.empty(4, 6)
            if len(modes) > 1:
                with modes[1]:
                    out = CALLS[name](a, b)
            else:
                out = CALLS[name](a, b)
        tensors = [out] if isinstance(out, Tensor) else list(out)
        shared = [[t.untyped_storage()._cdata == other.untyped_storage()._cdata for other in (a, b)] for t in tensors]
        same = [[t is other for other in (a, b)] for t in tensors]
        given.append(([look(t) for t in tensors], shared, same))
    assert given[0] == given[1] == given[2]
    assert memo.num_hits >= 1


def test_equal_numbers_of_unlike_types_are_unlike_calls() -> None:
    mode, memo = FakeTensorMode(), OperatorMemo()
    with mode, Recorder(lambda _phase: None, fake_results=FakeResults(mode, memo)):
        counts = torch.empty(4, dtype=torch.int64)
        assert [(counts * factor).dtype for factor in (2, 2.0, 2, 2.0)] == [torch.int64, torch.float32] * 2


def test_gradients_flow_through_rebuilt_results() -> None:
    mode, memo = FakeTensorMode(), OperatorMemo()
    with mode, Recorder(lambda _phase: None, fake_results=FakeResults(mode, memo)):
        weight = torch.nn.Parameter(torch.empty(6, 6))
        for _ in range(2):
            value = torch.empty(4, 6)
            for _ in range(3):
                value = torch.relu(value @ weight).view(4, 6)
            value.sum().backward()
            assert weight.grad is not None
            assert weight.grad.shape == (6, 6)
            weight.grad = None
    assert memo.num_hits > memo.num_misses


def test_most_operators_of_a_step_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adafactor goes through the weights one by one: equal shapes are computed once."""
    memos: list[OperatorMemo] = []

    class Kept(OperatorMemo):
        def __init__(self) -> None:
            super().__init__()
            memos.append(self)

    monkeypatch.setattr("foretune.trace.making.OperatorMemo", Kept)
    form = StepForm(model="sd3.5-medium", method="full", others=(("optimizer.kind", "adafactor"),))
    make_step_trace(form.experiment(), family_from_catalogue(form.model), "cuda", num_text_tokens=32)
    (memo,) = memos
    assert memo.num_hits > 10 * memo.num_misses
