"""The interface of optimizers, and the layout of their state in a checkpoint.

A checkpoint stores state tensors by name, so that a missing, extra or misshapen one is detected. Libraries do not
describe their state; each optimizer here comes with its layout.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from foretune.choices.training import Optimizer
from foretune.step.engine import sharded_like


@dataclass(frozen=True, kw_only=True)
class OptimizerRequest:
    """The arguments for building an optimizer."""

    choice: Optimizer
    weights: list[nn.Parameter]
    foreach: bool | None = None
    """Whether updates work on all tensors at once; None chooses by device."""
    seed: int = 0
    first: int = 0
    """Index of the first of these weights among all trained weights."""
    tables: dict[str, Tensor] = field(default_factory=dict)
    """Constant tables that all optimizers of a model read; the first one fills them."""

    def common(self) -> dict[str, Any]:
        """Returns the settings that most optimizers have, under the names that all libraries use."""
        choice = self.choice
        return {"lr": choice.lr, "betas": choice.betas, "eps": choice.eps, "weight_decay": choice.weight_decay}


@dataclass(frozen=True, slots=True)
class Form:
    """Shape and dtype of one state entry in a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_number: bool = False
    """A Python number in the optimizer, which a one-element tensor represents exactly."""
    is_on_host: bool = False
    """Always in host memory, wherever the weight is."""


COUNT = Form((), torch.int64, is_number=True)
REAL = Form((), torch.float64, is_number=True)
COUNT_AS_TENSOR = Form((), torch.float32, is_on_host=True)
"""The step count of torch's own optimizers."""


def like(weight: Tensor, dtype: torch.dtype | None = None) -> Form:
    """Returns a form with the weight's shape, and its dtype unless another is given."""
    return Form(tuple(weight.shape), dtype or weight.dtype)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The state of a library's optimizer."""

    of_weight: Callable[[Tensor], dict[str, Form]]
    of_all: Mapping[str, Form] = field(default_factory=dict)
    """State stored once for all weights, in the parameter group."""
    constants: frozenset[str] = frozenset()
    """Tables that every weight's state refers to; they never change."""
    passing: frozenset[str] = frozenset()
    """Entries that are written and read within one step."""
    begin: Callable[[Any, nn.Parameter], None] | None = None
    """Creates a weight's state as the library does; None if tensors of the right shape are enough."""
    average: Callable[[Tensor, Mapping[str, Any], Mapping[str, Any]], Tensor] | None = None
    """Computes the weight to use outside training from weight, state and group; None if it is the trained weight."""


class Updater(torch.optim.Optimizer, ABC):
    """Updates weights that have gradients. Its learning rate is set before each step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(list(parameters), {"lr": 0.0})

    def __init_subclass__(cls) -> None:
        # torch marks the steps of all optimizers for its profiler; the mark of the wrapped optimizer is enough.
        cls.step.hooked = True  # type: ignore[attr-defined]

    @abstractmethod
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates every weight that has a gradient."""

    def set_lr(self, lr: float) -> None:
        for group in self.param_groups:
            group["lr"] = lr

    def weights_replaced(self) -> None:
        """Called after the weights were overwritten from outside; most updaters store no copy of them."""

    @abstractmethod
    def kept(self, weight: nn.Parameter) -> list[Tensor]:
        """Returns the tensors in memory for this weight only."""

    @abstractmethod
    def kept_once(self) -> list[Tensor]:
        """Returns the tensors in memory once for all weights."""

    @abstractmethod
    def forms(self, weight: nn.Parameter) -> dict[str, Form]:
        """Returns the forms of what `save` returns for a weight that has received a gradient."""

    @abstractmethod
    def forms_once(self) -> dict[str, Form]:
        """Returns the forms of what `save_once` returns after the first step."""

    @abstractmethod
    def save(self, weight: nn.Parameter) -> dict[str, Tensor]:
        """Returns a weight's state by name, empty before its first gradient. The tensors are not copies."""

    @abstractmethod
    def save_once(self) -> dict[str, Tensor]:
        """Returns the state shared by all weights."""

    @abstractmethod
    def load(self, weight: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
        """Restores what `save` returned, in the expected forms."""

    @abstractmethod
    def load_once(self, saved: Mapping[str, Tensor]) -> None:
        """Restores what `save_once` returned."""

    @abstractmethod
    def averaged(self, weight: nn.Parameter) -> Tensor | None:
        """Returns the weight to use outside training, or None if it is the trained weight."""


class Direct(Updater):
    """A library's optimizer, on the weights' device."""

    def __init__(self, inner: torch.optim.Optimizer, layout: Layout) -> None:
        super().__init__([weight for group in inner.param_groups for weight in group["params"]])
        self.inner, self._layout = inner, layout
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training step computes gradients before it updates"
        self.inner.step()

    def kept(self, weight: nn.Parameter) -> list[Tensor]:
        state = self.state.get(weight, {})
        return [t for name, t in state.items() if isinstance(t, Tensor) and name not in self._layout.constants]

    def kept_once(self) -> list[Tensor]:
        tables = {
            id(table): table
            for state in self.state.values()
            for name, table in state.items()
            if name in self._layout.constants
        }
        return [*tables.values(), *(value for value in self._group.values() if isinstance(value, Tensor))]

    def forms(self, weight: nn.Parameter) -> dict[str, Form]:
        return self._layout.of_weight(weight)

    def forms_once(self) -> dict[str, Form]:
        return dict(self._layout.of_all)

    def save(self, weight: nn.Parameter) -> dict[str, Tensor]:
        state = self.state.get(weight)
        if not state:
            return {}
        own = {name: v for name, v in state.items() if name not in self._layout.constants | self._layout.passing}
        return _as_tensors(own, self.forms(weight))

    def save_once(self) -> dict[str, Tensor]:
        if not any(self.state.values()):
            return {}
        return _as_tensors({name: self._group[name] for name in self._layout.of_all}, self.forms_once())

    def load(self, weight: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
        if self._layout.begin is not None:
            self._layout.begin(self.inner, weight)
        state = self.state[weight]
        for name, form in self.forms(weight).items():
            _put(state, name, _laid_out_as(weight, sharded_like(saved[name], weight)), form, weight.device)

    def load_once(self, saved: Mapping[str, Tensor]) -> None:
        for name, form in self.forms_once().items():
            _put(self._group, name, saved[name], form, self._group["params"][0].device)

    def averaged(self, weight: nn.Parameter) -> Tensor | None:
        state = self.state.get(weight)
        if self._layout.average is None or not state:
            return None
        return self._layout.average(weight.detach(), state, self._group)

    @property
    def _group(self) -> dict[str, Any]:
        (group,) = self.param_groups
        return group


def _as_tensors(values: Mapping[str, Any], forms: Mapping[str, Form]) -> dict[str, Tensor]:
    # An entry that was forgotten must not look like one that never existed.
    assert set(values) == set(forms), f"this optimizer remembers something else: {sorted(set(values) ^ set(forms))}"
    found = {}
    for name, form in forms.items():
        value = torch.tensor(values[name], dtype=form.dtype) if form.is_number else values[name]
        assert (tuple(value.shape), value.dtype) == (form.shape, form.dtype), f"{name} has another form"
        found[name] = value
    return found


def _laid_out_as(weight: Tensor, saved: Tensor) -> Tensor:
    """Returns saved state in the weight's memory format: fused updates pair up elements by their place in memory."""
    if saved.shape != weight.shape or saved.stride() == weight.stride():
        return saved
    return torch.empty_like(weight.detach(), dtype=saved.dtype, device=saved.device).copy_(saved)


def _put(state: dict[str, Any], name: str, saved: Tensor, form: Form, device: torch.device) -> None:
    if form.is_number:
        state[name] = saved.item()
    elif isinstance(state.get(name), Tensor):
        state[name].copy_(saved)  # stays on the device that the library chose
    else:
        state[name] = saved.to("cpu" if form.is_on_host else device)
