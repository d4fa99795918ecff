"""The settings that a search varies. All combinations train on the same samples in each optimizer step."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.planner.knobs import SettingChange

_MACHINE = 8
"""Devices in a group of HSDP: those of a usual machine."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SWAPPED_EIGHTHS = range(1, 9)
_BASES = ("none", "int8", "nf4", "float8-dynamic")
_PRODUCTS = ("none", "float8-training")

_Settings = dict[str, Any]


@dataclass(frozen=True)
class Space:
    """A finite set of settings: every combination of one of each row."""

    rows: tuple[tuple[Mapping[str, Any], ...], ...]

    def __len__(self) -> int:
        return math.prod(map(len, self.rows))

    def changes(self) -> Iterator[SettingChange]:
        for combination in product(*self.rows):
            settings: _Settings = {}
            for part in combination:
                settings.update(part)
            yield SettingChange("other", settings)


def space_of(
    experiment: Experiment,
    num_blocks: int,
    typed: Collection[str] = (),
    min_batch: int = 1,
    counts: Collection[int] = (1,),
) -> Space:
    """Returns the settings to search for an experiment. Keys in `typed` stay as they are.

    `counts`: numbers of devices.
    """
    rows = (
        _passes(experiment, min_batch, counts),
        _recomputation(experiment, num_blocks),
        _bases(experiment),
        _weights(experiment),
        # Caching never costs memory or time of the training.
        [{"levers.cache_latents": True, "levers.cache_text": True}],
    )
    return Space(tuple(_as_typed(row, experiment, typed) for row in rows))


def num_samples_of(experiment: Experiment, min_batch: int = 1) -> int:
    """Returns the samples of an optimizer step over all devices, which stay the same."""
    return max(min_batch, experiment.samples_per_step())


def dividing(counts: Collection[int], num_samples: int, min_batch: int = 1) -> tuple[int, ...]:
    """Returns the numbers of devices among which the samples of a step can be divided."""
    return tuple(
        count for count in sorted(set(counts)) if num_samples % count == 0 and num_samples // count >= min_batch
    )


def _as_typed(row: list[_Settings], experiment: Experiment, typed: Collection[str]) -> tuple[Mapping[str, Any], ...]:
    """Returns the row without what differs from a typed setting; what the experiment has stays possible."""
    fixed = {key: _value(experiment, key) for settings in row for key in settings if key in typed}
    kept = [settings for settings in row if all(settings.get(key, value) == value for key, value in fixed.items())]
    return tuple(kept) or ({},)


def _value(experiment: Experiment, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(experiment, section), name)


def _passes(experiment: Experiment, min_batch: int, counts: Collection[int]) -> list[_Settings]:
    """Returns numbers of devices with every batch that divides a device's samples of an optimizer step."""
    num_samples = num_samples_of(experiment, min_batch)
    found = []
    for count in dividing(counts, num_samples, min_batch):
        of_device = num_samples // count
        for size in (size for size in range(min_batch, of_device + 1) if of_device % size == 0):
            batch = {"train.batch_size": size, "train.gradient_accumulation": of_device // size}
            found += [{**batch, **engine} for engine in _engines(experiment, count)]
    return found


def _engines(experiment: Experiment, count: int) -> list[_Settings]:
    """Returns DDP and FSDP2; beyond the devices of a usual machine HSDP, too."""
    now = experiment.parallel
    if count == now.devices == 1:
        return [{}]
    kinds: list[tuple[str, int | None]] = [("none", None)]
    if count > 1:
        kinds.append(("full", None))
    if count > _MACHINE and count % _MACHINE == 0:
        kinds.append(("hybrid", _MACHINE))
    if count == now.devices and (now.sharding, now.shard_devices) not in kinds:
        kinds.append((now.sharding, now.shard_devices))
    return [
        {"parallel.devices": count, "parallel.sharding": sharding, "parallel.shard_devices": group}
        for sharding, group in kinds
    ]


def _recomputation(experiment: Experiment, num_blocks: int) -> list[_Settings]:
    """Returns shares of checkpointed blocks without block swap, and numbers of swapped blocks with all of them."""
    checkpointing, swap, prefetch = (
        "levers.gradient_checkpointing",
        "levers.block_swap",
        "levers.block_swap_prefetch",
    )
    levers = experiment.levers
    ahead = levers.block_swap_prefetch
    now = {checkpointing: levers.gradient_checkpointing, swap: levers.block_swap, prefetch: ahead}
    if levers.checkpoint_stride is not None:
        return [now]
    rows = [{checkpointing: share, swap: 0, prefetch: ahead} for share in _SHARES]
    if isinstance(experiment.method, Adapter):
        numbers = dict.fromkeys(round(num_blocks * eighths / 8) for eighths in _SWAPPED_EIGHTHS)
        rows += [{checkpointing: 1.0, swap: number, prefetch: ahead} for number in numbers if number]
        if ahead:
            # The least memory: no block is copied ahead.
            rows.append({checkpointing: 1.0, swap: num_blocks, prefetch: 0})
    return rows if now in rows else [now, *rows]


def _bases(experiment: Experiment) -> list[_Settings]:
    kinds = _BASES if isinstance(experiment.method, Adapter) else _PRODUCTS
    return [{"quantize.denoiser": kind} for kind in dict.fromkeys((experiment.quantize.denoiser, *kinds))]


def _weights(experiment: Experiment) -> list[_Settings]:
    """Returns optimizers and dtypes of trained weights, from the most precise on; adapters keep theirs."""
    train, optimizer = experiment.train, experiment.optimizer
    now = {
        "train.weight_dtype": train.weight_dtype,
        "optimizer.kind": optimizer.kind,
        "optimizer.compensation": optimizer.compensation,
    }
    if experiment.method.kind != "full" or optimizer.kind != "adamw" or train.precision != "bf16":
        return [now]
    others = [
        ("bf16", "adamw", "stochastic"),
        ("fp32", "adamw8bit", "none"),
        ("bf16", "adamw8bit", "stochastic"),
        ("bf16", "adafactor", "stochastic"),
    ]
    return [now, *(row for other in others if (row := dict(zip(now, other, strict=True))) != now)]
