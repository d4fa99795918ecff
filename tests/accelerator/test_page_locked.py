"""Page-locked memory: laid out without rounding, and replaced by pageable memory where the driver refuses it."""

from typing import Any

import pytest
import torch

from foretune.accelerator import page_locked
from foretune.accelerator.copies import lasting_copies, to_host
from foretune.training.page_locking import PageLockingNotice

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def unrefused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_locked, "_refusal", None)


def refusing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A driver that page-locks nothing; the list grows with each request."""
    requests: list[Any] = []
    original = torch.empty_like

    def empty_like(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        if pin_memory:
            requests.append(args)
            raise torch.AcceleratorError("CUDA error: out of memory\nCompile with ...")
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    return requests


def test_a_refusal_means_pageable_memory_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = refusing(monkeypatch)
    like = torch.arange(3.0)
    assert page_locked.empty_like(like, torch.device("cpu")).shape == (3,)
    assert requests == []
    for _ in range(3):
        found = page_locked.empty_like(like, CUDA)
        assert (found.shape, found.dtype, found.device.type) == ((3,), torch.float32, "cpu")
        assert page_locked.locked(like, CUDA) is like
    assert len(requests) == 1
    assert page_locked.refusal() == "CUDA error: out of memory"


def test_the_copies_are_right_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch)
    tensors = [torch.randn(5, 3), torch.randn(7).to(torch.bfloat16), torch.randn(4, 6).t()]
    assert torch.equal(to_host(tensors[0], torch.device("cpu")), tensors[0])
    sources: list[torch.Tensor | None] = list(tensors)
    copies = dict(lasting_copies(sources, torch.device("cpu")))
    assert sources == [None] * 3
    assert all(torch.equal(copies[index], tensor) for index, tensor in enumerate(tensors))


def test_it_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    notice = PageLockingNotice(texts.append)
    notice.after_step(0)
    assert texts == []
    refusing(monkeypatch)
    page_locked.empty_like(torch.ones(1), CUDA)
    notice.after_step(1)
    notice.after_step(2)
    (text,) = texts
    assert "CUDA error: out of memory" in text
    assert "levers.block_swap" in text
