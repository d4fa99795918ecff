"""The state of a training step as a checkpoint, and back. Every draw is a function of the step, so the step is all
that is kept of randomness, data order and learning rate.
"""

from torch import Tensor

from foretune.run.checkpoints import Checkpoint
from foretune.step.training_step import TrainingStep


def components(step: TrainingStep) -> tuple[str, ...]:
    """What a checkpoint of this step must hold."""
    return ("weights", "optimizer", "ema") if step.ema is not None else ("weights", "optimizer")


def collect(step: TrainingStep, steps_done: int) -> Checkpoint:
    """References to the live tensors; they are copied when they are written."""
    tensors: dict[str, dict[str, Tensor]] = {"weights": dict(step.trained), "optimizer": {}}
    for name, parameter in step.trained.items():
        for key, value in step.optimizer.state[parameter].items():
            tensors["optimizer"][f"{name}/{key}"] = value
    if step.ema is not None:
        tensors["ema"] = step.ema.average
    return Checkpoint(steps_done, tensors, {"scaler": step.scaler.state_dict()})


def restore(step: TrainingStep, checkpoint: Checkpoint) -> None:
    """Puts a checkpoint's state into a freshly built step."""
    saved = checkpoint.tensors["weights"]
    assert set(saved) == set(step.trained), "the checkpoint belongs to another model or method"
    for name, parameter in step.trained.items():
        parameter.data.copy_(saved[name])
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
