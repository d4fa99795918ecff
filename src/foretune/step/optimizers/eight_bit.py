"""Optimizers of bitsandbytes: 8-bit states, in blocks of 256 with an fp32 scale each."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foretune.step.optimizers.base import COUNT, Direct, Form, Layout, OptimizerRequest, Updater, like

_BLOCK = 256
# The library's own limit: states of smaller weights are fp32.
_SMALLEST_IN_8_BITS = 4096


def adamw8bit(asked: OptimizerRequest) -> Updater:
    return _built("AdamW8bit", asked, asked.common(), _two_states)


def paged_adamw8bit(asked: OptimizerRequest) -> Updater:
    return _built("PagedAdamW8bit", asked, asked.common(), _two_states)


def lion(asked: OptimizerRequest) -> Updater:
    return _built("Lion", asked, _without_eps(asked), _one_full_state)


def lion8bit(asked: OptimizerRequest) -> Updater:
    return _built("Lion8bit", asked, _without_eps(asked), _one_state)


def _without_eps(asked: OptimizerRequest) -> dict[str, Any]:
    return {name: value for name, value in asked.common().items() if name != "eps"}


def _built(
    name: str, asked: OptimizerRequest, settings: dict[str, Any], of_weight: Callable[[Tensor], dict[str, Form]]
) -> Updater:
    import bitsandbytes.optim

    kind = _with_tables(getattr(bitsandbytes.optim, name), asked.tables, asked.weights[0].device)
    layout = Layout(of_weight=of_weight, constants=frozenset({"qmap1", "qmap2"}), begin=_begin)
    return Direct(kind(asked.weights, **settings), layout)


def _with_tables(kind: Any, tables: dict[str, Tensor], device: torch.device) -> Any:
    """Shares the dequantisation tables between optimizers: the library would compute them for each one."""

    def fill_qmap(optimizer: Any) -> None:
        if not tables:
            kind.fill_qmap(optimizer)
            tables.update({name: table.to(device) for name, table in optimizer.name2qmap.items()})
        optimizer.name2qmap.update(tables)

    return type(kind.__name__, (kind,), {"fill_qmap": fill_qmap})


def _begin(inner: Any, weight: nn.Parameter) -> None:
    """Creates the state as the library does at the first gradient, because a paged state is not an ordinary tensor."""
    (group,) = inner.param_groups
    index = next(i for i, parameter in enumerate(group["params"]) if parameter is weight)
    inner.init_state(group, weight, 0, index)


def _two_states(weight: Tensor) -> dict[str, Form]:
    return _states(weight, ("1", "2"))


def _one_state(weight: Tensor) -> dict[str, Form]:
    return _states(weight, ("1",))


def _one_full_state(weight: Tensor) -> dict[str, Form]:
    return {"step": COUNT, "state1": like(weight, torch.float32)}


def _states(weight: Tensor, numbers: tuple[str, ...]) -> dict[str, Form]:
    if weight.numel() < _SMALLEST_IN_8_BITS:
        return {"step": COUNT, **{f"state{n}": like(weight, torch.float32) for n in numbers}}
    scales = Form((-(-weight.numel() // _BLOCK),), torch.float32)
    return {
        "step": COUNT,
        **{f"state{n}": like(weight, torch.uint8) for n in numbers},
        **{f"absmax{n}": scales for n in numbers},
    }
