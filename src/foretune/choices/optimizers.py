"""Every optimizer by its name in `optimizer.kind`: what it needs, what it keeps of each weight, where it is built.

The schema, the rules on what goes together, the recipes of plans, `foretune doctor` and the registry of optimizers read
this table. A new optimizer is one row here, the function that builds it, and its recipe (`python -m tools.shipping`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

FOUND_LR_FACTOR = 1.0
"""`optimizer.lr` of an optimizer that finds the learning rate: it multiplies the rate it found by this."""
_FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer."""

    name: str
    """As in `optimizer.kind`."""
    target: str
    """The function that builds it, as "package.module:attribute"."""
    library: str | None = None
    """Module that the extra `optimizers` installs for it. None: it needs nothing beyond the extra `train`."""
    state_bytes: int
    """Bytes of state per fp32 weight, without what is small beside the weights."""
    has_weight_dtype: bool = False
    """Whether its states have the dtype of the weights: half as many bytes for bf16 weights."""
    note: str = ""
    """What the documentation of `optimizer.kind` says beside the bytes."""
    ignored: tuple[str, ...] = ()
    """Settings of the section `optimizer` that have no effect."""
    why_ignored: str = ""
    is_paged: bool = False
    """Whether its states are in CUDA's unified memory."""
    finds_lr: bool = False
    """Whether it finds one learning rate from all gradients; see `FOUND_LR_FACTOR`."""
    averages_weights: bool = False
    """Whether it averages the weights instead of lowering its learning rate."""
    is_in_doctor: bool = True
    """Whether `foretune doctor` takes a few steps with it."""

    def state_bytes_of(self, weight_bytes: int) -> int:
        """Bytes of state per weight of so many bytes."""
        return self.state_bytes * weight_bytes // _FP32_BYTES if self.has_weight_dtype else self.state_bytes

    def lr_or(self, lr: float) -> float:
        """The learning rate to set where `lr` suits the other optimizers."""
        return FOUND_LR_FACTOR if self.finds_lr else lr


_HERE = "foretune.step.optimizers"
_LION_HAS_NO_EPS = "Lion takes the sign of its average and divides by nothing"
_SPECS = (
    OptimizerSpec(name="adamw", target=f"{_HERE}.adamw:build", state_bytes=8, has_weight_dtype=True),
    OptimizerSpec(name="adamw8bit", target=f"{_HERE}.eight_bit:adamw8bit", library="bitsandbytes", state_bytes=2),
    OptimizerSpec(
        name="paged-adamw8bit",
        target=f"{_HERE}.eight_bit:paged_adamw8bit",
        library="bitsandbytes",
        state_bytes=2,
        note="paged to host memory when the device is full",
        is_paged=True,
        is_in_doctor=False,
    ),
    OptimizerSpec(
        name="lion",
        target=f"{_HERE}.eight_bit:lion",
        library="bitsandbytes",
        state_bytes=4,
        ignored=("eps",),
        why_ignored=_LION_HAS_NO_EPS,
    ),
    OptimizerSpec(
        name="lion8bit",
        target=f"{_HERE}.eight_bit:lion8bit",
        library="bitsandbytes",
        state_bytes=1,
        ignored=("eps",),
        why_ignored=_LION_HAS_NO_EPS,
        is_in_doctor=False,
    ),
    OptimizerSpec(
        name="adafactor",
        target=f"{_HERE}.factored:build",
        state_bytes=0,
        ignored=("betas", "eps"),
        why_ignored="adafactor has its own",
    ),
    OptimizerSpec(
        name="prodigy",
        target=f"{_HERE}.self_tuning:prodigy",
        library="pytorch_optimizer",
        state_bytes=16,
        has_weight_dtype=True,
        note="finds the learning rate; set `lr: 1`",
        finds_lr=True,
    ),
    OptimizerSpec(
        name="schedule-free",
        target=f"{_HERE}.self_tuning:schedule_free",
        library="pytorch_optimizer",
        state_bytes=8,
        has_weight_dtype=True,
        note="needs no schedule",
        averages_weights=True,
    ),
)
OPTIMIZER_SPECS: Mapping[str, OptimizerSpec] = {spec.name: spec for spec in _SPECS}

if TYPE_CHECKING:
    OptimizerKind: TypeAlias = str
else:
    # One of the names in the table, which type checkers cannot read; pydantic checks it.
    OptimizerKind = Literal[tuple(OPTIMIZER_SPECS)]


def state_bytes_text() -> str:
    """The bytes of state of every optimizer, as the documentation of `optimizer.kind` lists them."""
    return ", ".join(
        f"{spec.name} {spec.state_bytes or 'almost none'}{f' ({spec.note})' if spec.note else ''}" for spec in _SPECS
    )
