"""The state of a training step as a checkpoint, and back. Every draw is a function of the step, so the step is all
that is kept of randomness, data order and learning rate.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from foretune.run.checkpoints import Checkpoint, DamagedCheckpoint
from foretune.step.optimizing import state_names
from foretune.step.training_step import TrainingStep


def components(step: TrainingStep) -> tuple[str, ...]:
    """What a checkpoint of this step must hold."""
    return ("weights", "optimizer", "ema") if step.ema is not None else ("weights", "optimizer")


def collect(step: TrainingStep, steps_done: int) -> Checkpoint:
    """References to the live tensors; they are copied when they are written."""
    tensors: dict[str, dict[str, Tensor]] = {"weights": dict(step.trained), "optimizer": {}}
    untouched = []
    remembered = state_names(step.optimizer)
    for name, parameter in step.trained.items():
        state = step.optimizer.state.get(parameter)
        if not state:
            untouched.append(name)
            continue
        # A part that a writer forgets must not look like one that never was.
        assert sorted(state) == sorted(remembered), "this optimizer remembers something else"
        tensors["optimizer"] |= {f"{name}/{field}": state[field] for field in remembered}
    if step.ema is not None:
        tensors["ema"] = step.ema.average
    return Checkpoint(steps_done, tensors, {"scaler": step.scaler.state_dict(), "untouched": untouched})


def check(step: TrainingStep, checkpoint: Checkpoint) -> None:
    """Raises DamagedCheckpoint unless everything is there that this step needs, and nothing else."""
    scalars = checkpoint.scalars
    _same_names("state.json", scalars, ("scaler", "untouched"))
    _same_names("the loss scaler", scalars["scaler"], step.scaler.state_dict())
    weights = {name: parameter.detach() for name, parameter in step.trained.items()}
    # Weights that no gradient has reached yet, in a part that is not used or before the first step that was not
    # skipped, have no state in the optimizer. They are named, so that any other one is missed.
    untouched = set(scalars["untouched"])
    touched = [name for name in weights if name not in untouched]
    scalar = torch.empty((), dtype=torch.float32)
    states = {
        f"{name}/{field}": scalar if field == "step" else weights[name]
        for name in touched
        for field in state_names(step.optimizer)
    }
    expected = {"weights": weights, "optimizer": states, "ema": step.ema.average if step.ema is not None else {}}
    for component, tensors in checkpoint.tensors.items():
        _same_names(component, tensors, expected[component])
        for name, tensor in tensors.items():
            like = expected[component][name]
            if tensor.shape != like.shape or tensor.dtype != like.dtype:
                raise DamagedCheckpoint(f"{component}: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}")


def restore(step: TrainingStep, checkpoint: Checkpoint) -> None:
    """Puts a checked checkpoint's state into a freshly built step."""
    for name, parameter in step.trained.items():
        parameter.data.copy_(checkpoint.tensors["weights"][name])
    index_of = {name: index for index, name in enumerate(step.trained)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.tensors["optimizer"].items():
        name, _, field = key.rpartition("/")
        state.setdefault(index_of[name], {})[field] = tensor
    groups = step.optimizer.state_dict()["param_groups"]
    step.optimizer.load_state_dict({"state": state, "param_groups": groups})
    if step.ema is not None:
        step.ema.load(checkpoint.tensors["ema"])
    if checkpoint.scalars["scaler"]:
        step.scaler.load_state_dict(dict(checkpoint.scalars["scaler"]))


def _same_names(what: str, found: Any, expected: Iterable[str]) -> None:
    """A name too few would leave a part as it was built, one too many belongs to something else."""
    names = set(found) if isinstance(found, Mapping) else set()
    if wrong := sorted(names ^ set(expected)):
        kind = "misses" if wrong[0] in set(expected) else "should not hold"
        raise DamagedCheckpoint(f"{what} {kind} {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""))
