"""The optimizer and the scheduler of a DeepSpeed JSON file."""

from typing import Any

from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_accelerate.draft import Draft

_ADAMS = ("AdamW", "Adam", "FusedAdam", "DeepSpeedCPUAdam")
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_FROM_THE_SCRIPT = "auto is what the training script has; the experiment has its own value"


def set_optimizer(keys: ConfigKeys, draft: Draft) -> None:
    """AdamW with its numbers; others have no counterpart that works in every setting."""
    kind = keys.get("optimizer.type")
    if kind is None:
        return
    is_adam = str(kind).lower() in [name.lower() for name in _ADAMS]
    if not is_adam or not keys.boolean("optimizer.params.adam_w_mode", default=True):
        text = "it is not AdamW. Nearest: optimizer.kind=adamw, or another optimizer of the experiment"
        for key in [key for key in keys.unanswered() if key.startswith("optimizer.")]:
            keys.answer(key, "not supported", text)
        return
    keys.answer("optimizer.type", "translated", draft.take("optimizer.kind", "adamw"))
    for name in ("lr", "eps", "weight_decay"):
        _set_number(keys, f"optimizer.params.{name}", f"optimizer.{name}", draft)
    _set_betas(keys, draft)
    # With `torch_adam` the default is torch's, which is the one here.
    if "optimizer.params.weight_decay" not in keys and not keys.boolean("optimizer.params.torch_adam"):
        draft.take("optimizer.weight_decay", 0.0)
        draft.same.append("No weight decay (optimizer.weight_decay=0.0), which is DeepSpeed's default.")


def _set_number(keys: ConfigKeys, key: str, setting: str, draft: Draft) -> None:
    if keys.get(key) == "auto":
        keys.answer(key, "not needed", _FROM_THE_SCRIPT)
    elif key in keys:
        value = keys.number(key, None)
        if value or (value == 0 and setting == "optimizer.weight_decay"):
            keys.answer(key, "translated", draft.take(setting, value))
        elif value is not None:
            keys.answer(key, "not supported", f"{setting} is more than 0")


def _set_betas(keys: ConfigKeys, draft: Draft) -> None:
    key = "optimizer.params.betas"
    betas: Any = keys.get(key)
    if betas == "auto":
        keys.answer(key, "not needed", _FROM_THE_SCRIPT)
    elif betas is not None:
        is_pair = isinstance(betas, list) and len(betas) == 2  # noqa: PLR2004 - of two moments
        if not is_pair or not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas):
            keys.problems.append(f"{keys.name(key)}: should be two numbers from 0 to 1, such as [0.9, 0.999]")
            return
        keys.answer(key, "translated", draft.take("optimizer.betas", betas))


def set_schedule(keys: ConfigKeys, draft: Draft) -> None:
    kind = keys.get("scheduler.type")
    if kind is None:
        return
    by_lower = {name.lower(): schedule for name, schedule in _SCHEDULES.items()}
    schedule = by_lower.get(str(kind).lower())
    if schedule is None:
        text = "schedules are constant, linear and cosine, after a warm-up. Nearest: optimizer.schedule=cosine"
        for key in [key for key in keys.unanswered() if key.startswith("scheduler.")]:
            keys.answer(key, "not supported", text)
        return
    keys.answer("scheduler.type", "translated", draft.take("optimizer.schedule", schedule))
    steps = "scheduler.params.warmup_num_steps"
    if keys.get(steps) == "auto":
        keys.answer(steps, "not needed", _FROM_THE_SCRIPT)
    elif steps in keys:
        keys.answer(steps, "translated", draft.take("optimizer.warmup_steps", keys.integer(steps, 0, at_least=0)))
    _set_number(keys, "scheduler.params.warmup_max_lr", "optimizer.lr", draft)
    if keys.get("scheduler.params.warmup_type") != "linear":
        draft.differs.append("The warm-up is linear; DeepSpeed's is logarithmic unless warmup_type is linear.")
