"""What turns gradients into new weights, and what it keeps of each weight between two steps.

A checkpoint holds what is kept under names, so that a piece that is missing, too much or of another shape is noticed.
Libraries have no word for that; each optimizer here comes with its layout.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from foretune.choices.training import Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerRequest:
    """An optimizer to be made."""

    choice: Optimizer
    weights: list[nn.Parameter]
    foreach: bool | None = None
    """Updates over all tensors at once; None: as suits the device."""
    seed: int = 0
    first: int = 0
    """Which of all trained weights is the first one here."""
    tables: dict[str, Tensor] = field(default_factory=dict)
    """Filled by the first optimizer of a model for the others: constants that all of them read."""

    def common(self) -> dict[str, Any]:
        """The settings that most optimizers have, by the names that all libraries give them."""
        choice = self.choice
        return {"lr": choice.lr, "betas": choice.betas, "eps": choice.eps, "weight_decay": choice.weight_decay}


@dataclass(frozen=True, slots=True)
class Form:
    """One thing that is kept: its shape and type in a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_number: bool = False
    """A Python number in the optimizer, which a tensor of one element holds exactly."""
    is_on_host: bool = False
    """Never on the device, wherever the weight is."""


COUNT = Form((), torch.int64, is_number=True)
REAL = Form((), torch.float64, is_number=True)
COUNT_AS_TENSOR = Form((), torch.float32, is_on_host=True)
"""How torch's own optimizers count their steps."""


def like(weight: Tensor, dtype: torch.dtype | None = None) -> Form:
    """Of the weight's shape, and of its type unless another is given."""
    return Form(tuple(weight.shape), dtype or weight.dtype)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What an optimizer of a library keeps."""

    of_weight: Callable[[Tensor], dict[str, Form]]
    of_all: Mapping[str, Form] = field(default_factory=dict)
    """Kept once for all weights, in the optimizer's group of them."""
    constants: frozenset[str] = frozenset()
    """Tables that every weight's state points to; nothing ever changes them."""
    passing: frozenset[str] = frozenset()
    """Written at each step and read only in it."""
    begin: Callable[[Any, nn.Parameter], None] | None = None
    """Makes the state of a weight as the library makes it; left out: tensors of the right shape are all it takes."""
    average: Callable[[Tensor, Mapping[str, Any], Mapping[str, Any]], Tensor] | None = None
    """From a weight, its state and its group to the weight that is to be used, where that is another."""


class Updater(torch.optim.Optimizer, ABC):
    """Updates weights whose gradients are there. Its learning rate is set anew before each step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(list(parameters), {"lr": 0.0})

    def __init_subclass__(cls) -> None:
        # Torch marks the steps of all optimizers for its profiler; those of the library's are enough.
        cls.step.hooked = True  # type: ignore[attr-defined]

    @abstractmethod
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates every weight that has a gradient."""

    def set_lr(self, lr: float) -> None:
        for group in self.param_groups:
            group["lr"] = lr

    def weights_replaced(self) -> None:
        """The weights were given other values from outside; most updaters keep no copy of them."""

    @abstractmethod
    def kept(self, weight: nn.Parameter) -> list[Tensor]:
        """The tensors in memory for this weight alone."""

    @abstractmethod
    def kept_once(self) -> list[Tensor]:
        """The tensors in memory once for all weights."""

    @abstractmethod
    def forms(self, weight: nn.Parameter) -> dict[str, Form]:
        """What `save` gives for a weight that a gradient has reached."""

    @abstractmethod
    def forms_once(self) -> dict[str, Form]:
        """What `save_once` gives after the first step."""

    @abstractmethod
    def save(self, weight: nn.Parameter) -> dict[str, Tensor]:
        """What is kept of a weight, by name; nothing where no gradient has reached it yet. Tensors are live."""

    @abstractmethod
    def save_once(self) -> dict[str, Tensor]:
        """What is kept once for all weights."""

    @abstractmethod
    def load(self, weight: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
        """Puts back what `save` gave, in the forms that were asked for."""

    @abstractmethod
    def load_once(self, saved: Mapping[str, Tensor]) -> None:
        """Puts back what `save_once` gave."""

    @abstractmethod
    def averaged(self, weight: nn.Parameter) -> Tensor | None:
        """The weight to use outside of training, where that is another than the one that is trained."""


class Direct(Updater):
    """A library's optimizer, on the device where the weights are."""

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
            _put(state, name, saved[name], form, weight.device)

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
    # A part that a writer forgets must not look like one that never was.
    assert set(values) == set(forms), f"this optimizer remembers something else: {sorted(set(values) ^ set(forms))}"
    found = {}
    for name, form in forms.items():
        value = torch.tensor(values[name], dtype=form.dtype) if form.is_number else values[name]
        assert (tuple(value.shape), value.dtype) == (form.shape, form.dtype), f"{name} has another form"
        found[name] = value
    return found


def _put(state: dict[str, Any], name: str, saved: Tensor, form: Form, device: torch.device) -> None:
    if form.is_number:
        state[name] = saved.item()
    elif isinstance(state.get(name), Tensor):
        state[name].copy_(saved)  # where the library wants it to be
    else:
        state[name] = saved.to("cpu" if form.is_on_host else device)
