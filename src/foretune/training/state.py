"""The state of a training step as a checkpoint, and back. Every draw is a function of the step, so the step is all
that is kept of randomness, data order and learning rate.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from foretune.choices.training import Optimizer
from foretune.step.engine import empty_part, sharded_like
from foretune.step.optimizers.base import Form, like
from foretune.step.optimizers.on_host import MASTER
from foretune.step.optimizers.self_tuning import BASE, average_of
from foretune.step.training_step import TrainingStep
from foretune.training.checkpoint_files import Checkpoint, DamagedCheckpoint, Place

# In the place of a weight's name: what the optimizer keeps once for all of them.
_ALL = "*"
COUNTED = "counted_s"
"""What the clock of a run with a time budget had counted."""
T = TypeVar("T")


def components(step: TrainingStep) -> tuple[str, ...]:
    """What a checkpoint of this step must hold."""
    return ("weights", "optimizer", "ema") if step.ema is not None else ("weights", "optimizer")


def collect(step: TrainingStep, steps_done: int, counted_s: float | None = None) -> Checkpoint:
    """References to the live tensors; they are copied when they are written.

    Where the run ends when its time is up, the seconds that its clock has counted are part of the state.
    """
    tensors: dict[str, dict[str, Tensor]] = {"weights": dict(step.trained), "optimizer": {}}
    untouched = []
    for name, weight in step.trained.items():
        kept = step.optimizer.save(weight)
        tensors["optimizer"] |= _named(name, kept)
        if not kept:
            untouched.append(name)
    tensors["optimizer"] |= _named(_ALL, step.optimizer.save_once())
    if step.ema is not None:
        tensors["ema"] = dict(step.ema.average)
    time_counted = {} if counted_s is None else {COUNTED: counted_s}
    return Checkpoint(steps_done, tensors, {"scaler": step.scaler.state_dict(), "untouched": untouched, **time_counted})


def check(step: TrainingStep, checkpoint: Checkpoint, *, has_clock: bool = False) -> None:
    """Raises DamagedCheckpoint unless everything is there that this step needs, and nothing else."""
    scalars = checkpoint.scalars
    _same_names("state.json", scalars, ("scaler", "untouched", *((COUNTED,) if has_clock else ())))
    if has_clock and not _is_time(scalars[COUNTED]):
        raise DamagedCheckpoint(f"state.json: {COUNTED} is {scalars[COUNTED]!r}")
    _same_names("the loss scaler", scalars["scaler"], step.scaler.state_dict())
    weights = {name: like(weight) for name, weight in step.trained.items()}
    # Weights that no gradient has reached yet, in a part that is not used or before the first step that was not
    # skipped, have no state in the optimizer. They are named, so that any other one is missed.
    untouched = set(scalars["untouched"])
    states: dict[str, Form] = {}
    for name in weights.keys() - untouched:
        states |= _named(name, step.optimizer.forms(step.trained[name]))
    if weights.keys() - untouched:
        states |= _named(_ALL, step.optimizer.forms_once())
    averages = {name: like(average) for name, average in step.ema.average.items()} if step.ema is not None else {}
    expected = {"weights": weights, "optimizer": states, "ema": averages}
    for component, tensors in checkpoint.tensors.items():
        _same_names(component, tensors, expected[component])
        for name, tensor in tensors.items():
            form = expected[component][name]
            if tuple(tensor.shape) != form.shape or tensor.dtype != form.dtype:
                raise DamagedCheckpoint(f"{component}: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}")


def place(step: TrainingStep) -> Place:
    """Makes what the tensors of a sharded checkpoint are read into: shards as those of the weights they belong to."""

    def placed(component: str, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        weight = step.trained.get(name.rpartition("/")[0] if component == "optimizer" else name)
        return torch.empty(shape, dtype=dtype) if weight is None else empty_part(weight, shape, dtype)

    return placed


def restore(step: TrainingStep, checkpoint: Checkpoint) -> None:
    """Puts a checked checkpoint's state into a freshly built step."""
    for name, parameter in step.trained.items():
        parameter.data.copy_(sharded_like(checkpoint.tensors["weights"][name], parameter))
    step.optimizer.weights_replaced()
    kept: dict[str, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.tensors["optimizer"].items():
        name, _, field = key.rpartition("/")
        kept.setdefault(name, {})[field] = tensor
    kept_once = kept.pop(_ALL, None)
    for name, tensors in kept.items():
        step.optimizer.load(step.trained[name], tensors)
    if kept_once is not None:
        step.optimizer.load_once(kept_once)
    if step.ema is not None:
        step.ema.load(checkpoint.tensors["ema"])
    if checkpoint.scalars["scaler"]:
        step.scaler.load_state_dict(dict(checkpoint.scalars["scaler"]))


def shown_weights(choice: Optimizer, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    """The weights to use outside of training: the moving average, or what the optimizer averaged, or the trained ones.

    They are fp32 where anything but the trained weights is. Each is read, or computed, when it is asked for.
    """
    if "ema" in checkpoint.tensors:
        return checkpoint.tensors["ema"]
    return _Shown(choice, checkpoint.tensors["weights"], checkpoint.tensors["optimizer"])


@dataclass(frozen=True)
class _Shown(Mapping[str, Tensor]):
    choice: Optimizer
    weights: Mapping[str, Tensor]
    kept: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        master, base = f"{name}/{MASTER}", f"{name}/{BASE}"
        exact = self.kept[master] if master in self.kept else self.weights[name]
        return average_of(exact, self.kept[base], self.choice.betas[0]) if base in self.kept else exact

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _named(name: str, fields: Mapping[str, T]) -> dict[str, T]:
    return {f"{name}/{field}": value for field, value in fields.items()}


def _same_names(what: str, found: Any, expected: Iterable[str]) -> None:
    """A name too few would leave a part as it was built, one too many belongs to something else."""
    names = set(found) if isinstance(found, Mapping) else set()
    if wrong := sorted(names ^ set(expected)):
        kind = "misses" if wrong[0] in set(expected) else "should not hold"
        raise DamagedCheckpoint(f"{what} {kind} {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""))
