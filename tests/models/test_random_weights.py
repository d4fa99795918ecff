"""A denoiser of random weights is what loading leaves; no weight is ever in a wider dtype, and none exists twice."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from foretune.choices.model import resolve_model
from foretune.core.errors import Refused, UserError
from foretune.models.family import Family, cast_as_loaded
from foretune.models.random_weights import _NUM_DRAWN, family_without_weights, random_denoiser

CPU = torch.device("cpu")


class Allocations(TorchDispatchMode):
    """Bytes of all storages that operators make outside of meta, and the largest in fp32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[int] = set()
        self.kept: list[torch.Tensor] = []
        self.num_bytes = self.largest_fp32 = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                if storage._cdata not in self.seen:
                    self.seen.add(storage._cdata)
                    self.kept.append(tensor)  # so that no address is used twice
                    self.num_bytes += storage.nbytes()
                    if tensor.dtype == torch.float32:
                        self.largest_fp32 = max(self.largest_fp32, storage.nbytes())
        return made


def ddpm() -> Family:
    return family_without_weights(resolve_model("ddpm-cifar10"))


def built(family: Family) -> tuple[torch.nn.Module, Allocations]:
    with Allocations() as allocations:
        return random_denoiser(family, torch.bfloat16, CPU), allocations


def test_weights_are_allocated_once_in_their_own_dtype() -> None:
    denoiser, allocations = built(ddpm())
    weights = sum(parameter.nbytes for parameter in denoiser.parameters())
    assert weights > 70e6
    # Described once without being touched, allocated once; and the numbers that weights repeat, in fp32 and in bf16.
    assert allocations.num_bytes <= 2 * weights + 8 * _NUM_DRAWN
    assert allocations.largest_fp32 <= 4 * _NUM_DRAWN


def test_it_is_what_loading_leaves() -> None:
    family = ddpm()
    denoiser, _ = built(family)
    described = family.denoiser_on_meta(torch.bfloat16)
    cast_as_loaded(described, torch.bfloat16)
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in described.state_dict().items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in denoiser.state_dict().items()} == expected
    assert all(parameter.requires_grad for parameter in denoiser.parameters())
    assert not any(tensor.device.type == "meta" for tensor in denoiser.state_dict().values())


def test_weights_differ_and_are_the_same_each_time() -> None:
    first, _ = built(ddpm())
    second, _ = built(ddpm())
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other), name
        assert torch.isfinite(one).all(), name
        if one.dim() > 1:
            rows = one.detach().flatten(1)
            assert len(rows) == 1 or not torch.equal(rows[0], rows[1]), name


def test_what_has_no_sizes_here_is_refused() -> None:
    with pytest.raises(UserError, match="not in the catalogue"):
        family_without_weights(resolve_model("someone/some-model"))
    with pytest.raises(Refused, match="cannot be trained"):
        family_without_weights(resolve_model("auraflow"))
