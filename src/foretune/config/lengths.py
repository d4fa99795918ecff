"""How long an experiment trains, decided by a bench or a study instead of its file."""

from collections.abc import Mapping
from typing import Any

_LENGTHS = ("steps", "epochs", "seconds", "clock")


def with_length(mapping: Mapping[str, Any], **length: Any) -> dict[str, Any]:
    """The experiment with this length, such as `steps=10`, in place of its own; other keys are set in `train` too."""
    train = {key: value for key, value in (mapping.get("train") or {}).items() if key not in _LENGTHS}
    return {**mapping, "train": {**train, **length}}


def only_steps(mapping: Mapping[str, Any], num_steps: int) -> dict[str, Any]:
    """The experiment without what happens around its steps: no validation, no checkpoints, no trackers."""
    bare = {key: value for key, value in mapping.items() if key not in ("save", "track", "profile")}
    return {**with_length(bare, steps=num_steps), "validate": {"num_held_out": 0, "prompts": []}}
