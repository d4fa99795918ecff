"""Advice: a short menu of settings that make a run fit, as an expert would try them, or uses for free memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any

from foretune.catalog.devices import Device
from foretune.choices.method import Adapter
from foretune.choices.objections.hardware import hardware_objections
from foretune.core.values.plan import Plan, Remedy, ValidationMemory
from foretune.core.vocabulary import MemoryPart, RunPhase
from foretune.planner.host_memory import HostBudget
from foretune.planner.knobs import (
    QUANTISED_BASES,
    SettingChange,
    block_swap,
    fewer_frames,
    host_memory,
    larger_batches,
    less_checkpointing,
    lighter_optimizers,
    lora_instead,
    quantised_bases,
    recompute,
    sharding,
    smaller_images,
    smaller_ranks,
)
from foretune.planner.overheads import usable_bytes
from foretune.planner.planning import Footprint, fits_on, validation_on
from foretune.planner.timing.terms import PUBLISHED, Terms
from foretune.planner.trial import Look, Trial

_HARDLY_MORE_FLOPS = 0.01
_SMALL_PART = 0.1
"""An adapter below this share of the missing memory is not worth shrinking."""
_FEW_SWAPPED = 0.5
"""A coarser base is offered if it swaps at most this share of a finer one's blocks: otherwise it is hardly faster."""
_OF_THE_ADAPTER = (
    MemoryPart.TRAINED_WEIGHTS,
    MemoryPart.GRADIENTS,
    MemoryPart.OPTIMIZER_STATE,
    MemoryPart.EMA,
    MemoryPart.CAST_WEIGHTS,
)
_OTHER_TRAINING = frozenset({"smaller input", "adapter", "other"})
"""Kinds of remedies that train on other data, or other weights."""
_SHARED_MEMORY = ("cpu", "mps")
"""Kinds of devices that share the host's memory."""


def with_advice(
    plan: Plan,
    found: Footprint,
    device: Device,
    candidates: Sequence[Device],
    *,
    has_headroom: bool = True,
    only_first: bool = False,
    host: HostBudget | None = None,
    terms: Terms = PUBLISHED,
) -> Plan:
    """Returns the plan with advice. `candidates` are the devices to search for the smallest that fits.

    With a known `host` memory, settings that need more of it than there is are left out.
    """
    trial = Trial(plan, found, device, host, terms)
    if plan.verdict == "fits":
        headroom = _ranked(map(trial.remedy, _headroom(trial))) if has_headroom else ()
        validation = _with_settings(plan.validation, trial)
        return plan.model_copy(update={"headroom": headroom, "validation": validation})
    remedies = _without_repeats(trial.remedy(look) for look in islice(_menu(trial), 1 if only_first else None))
    return plan.model_copy(
        update={"remedies": _ranked(remedies), "smallest_device": smallest_device(found, candidates, device.kind)}
    )


def _ranked(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Puts first what costs the least time; what trains something else stays behind. Unranked if a time is not known.

    What is only tight stays behind what fits. Copies that are hidden behind computation count as if they were not: that
    depends on the host's memory and its link, of which a plan knows the data sheet at best.
    """
    found = tuple(remedies)
    if any(remedy.slowdown_share is None for remedy in found):
        return found

    def place(remedy: Remedy) -> tuple[bool, bool, float]:
        costs_s = (remedy.slowdown_s or 0.0) + (remedy.hidden_copy_s or 0.0)
        return remedy.kind in _OTHER_TRAINING, remedy.verdict != "fits", costs_s

    return tuple(sorted(found, key=place))


def smallest_device(found: Footprint, candidates: Sequence[Device], kind: str) -> str | None:
    """Returns the device with the least memory on which the run fits unchanged, preferably of the given kind.

    Devices that do not support what the experiment uses (bf16, float8) are skipped.
    """
    able = [device for device in candidates if not any(hardware_objections(found.experiment, device))]
    ordered = sorted(able, key=lambda device: (device.kind != kind, usable_bytes(device), device.name))
    return next((device.name for device in ordered if fits_on(found, device)), None)


def _menu(trial: Trial) -> Iterator[Look]:
    """Yields at most one remedy of each kind: without host traffic first, and the smallest change of the result first.

    If settings that cost nothing are enough, nothing else is offered.
    """
    needed = _needed_for_caches(trial)
    if needed is None:
        return
    experiment = trial.found.experiment
    # torch has no expandable segments on Windows, and in WSL the driver may refuse to reserve addresses for them.
    possible = recompute(trial.found, has_expandable=not trial.device.pages_to_host)
    cheap = sorted(possible, key=lambda change: (trial.extra_flops_share(change), len(change.words())))
    # If only a cache does not fit, its settings are enough.
    least = [SettingChange("recompute")] if needed else []
    found = trial.first_that_fits(change.on_top_of(needed) for change in [*least, *cheap])
    if found is not None:
        yield found
        if trial.extra_flops_share(found.change) < _HARDLY_MORE_FLOPS:
            return
    # All settings that add computation without changing the result, as a base for further changes.
    saving = {**needed, **(cheap[-1].settings if cheap else {})}
    yield from _found(trial.first_that_fits(_on_top(sharding(experiment), needed, saving)))
    quantised_alone = False
    for look in chain(_of_an_adapter(trial, needed, saving), _of_all_weights(trial, needed, saving)):
        yield look
        quantised_alone |= look.fits and look.change.kind == "quantised base" and not look.footprint.moved.total_bytes
    if found is None:
        # A smaller input with a quantised base is only useful if the quantised base alone is not enough.
        yield from _smaller_input(trial, needed, saving, also_quantised=not quantised_alone)
    lora = lora_instead(experiment)
    if lora is not None:
        on_bases = [lora.on_top_of({"quantize.denoiser": base}) for base in QUANTISED_BASES]
        fitting = trial.first_that_fits(_on_top([lora, *on_bases], needed, saving))
        swapped = (_fewest_swapped(trial, change.on_top_of(needed)) for change in on_bases)
        yield from _found(fitting or next((look for look in swapped if look is not None), None))


def _of_an_adapter(trial: Trial, needed: Mapping[str, Any], saving: Mapping[str, Any]) -> Iterator[Look]:
    """Yields quantised bases, then the unchanged base with tensors in host memory."""
    found = trial.found
    if not isinstance(found.experiment.method, Adapter):
        return
    missing_bytes = trial.plan.process_high_bytes - trial.usable_bytes
    parts = found.worst.memory.device_bytes_by_part
    adapter_bytes = sum(parts.get(part, 0) for part in _OF_THE_ADAPTER)
    if adapter_bytes > missing_bytes * (1 + _SMALL_PART):
        yield from _found(trial.first_that_fits(_on_top(smaller_ranks(found.experiment), needed, saving)))
    finest: Look | None = None
    bases = quantised_bases(found.experiment)
    for place, base in enumerate(bases):
        finest = trial.first_that_fits(_on_top([base], needed, saving))
        if finest is not None:
            yield finest
            if place:
                # The finer one fits only with block swap: slower, but closer to the unquantised base.
                yield from _found(_fewest_swapped(trial, bases[0].on_top_of(needed)))
            break
    if finest is None:
        yield from _swapped_bases(trial, [base.on_top_of(needed) for base in bases])
        # Many owners of such a card would rather close their programs than wait for host traffic.
        yield from _found(trial.first_that_fits_without_desktop(base.on_top_of(needed) for base in bases))
    yield from _found(_least_traffic(trial, saving))


def _swapped_bases(trial: Trial, bases: Sequence[SettingChange]) -> Iterator[Look]:
    """Yields the finest base that fits with block swap, after a coarser one that swaps far fewer blocks.

    Which is far fewer is estimated: an exact look takes long, and often only the first remedy is wanted.
    """
    numbers = [trial.estimated_fewest(_swapping(base), _num_blocks(trial)) for base in bases]
    of_finest = next((number for number in numbers if number is not None), 0)
    most = int(of_finest * _FEW_SWAPPED)
    few = [number is not None and number <= most for number in numbers]
    for base, is_few in zip(bases, few, strict=True):
        if is_few:
            yield from _found(_fewest_swapped(trial, base, most))
    others = (_fewest_swapped(trial, base) for base, is_few in zip(bases, few, strict=True) if not is_few)
    yield from _found(next((look for look in others if look is not None), None))


def _of_all_weights(trial: Trial, needed: Mapping[str, Any], saving: Mapping[str, Any]) -> Iterator[Look]:
    """Yields remedies for full fine-tuning: fewer bytes per weight, or the same bytes in host memory."""
    experiment = trial.found.experiment
    if experiment.method.kind != "full":
        return
    lighter = list(lighter_optimizers(experiment))
    yield from _found(trial.first_that_fits(_on_top(lighter, needed, saving)))
    yield from _found(_least_traffic(trial, saving))


def _least_traffic(trial: Trial, saving: Mapping[str, Any]) -> Look | None:
    """Returns the same result with tensors in host memory. None if device and host share their memory."""
    if trial.device.kind in _SHARED_MEMORY:
        return None
    found = trial.first_that_fits(change.on_top_of(saving) for change in host_memory(trial.found))
    if found is not None or not isinstance(trial.found.experiment.method, Adapter):
        return found
    plain = SettingChange("host memory", saving)
    with_offload = SettingChange("host memory", {**saving, "levers.activation_offload": True})
    return _fewest_swapped(trial, plain) or _fewest_swapped(trial, with_offload)


def _fewest_swapped(trial: Trial, change: SettingChange, most: int | None = None) -> Look | None:
    """Returns the change with the fewest swapped blocks that make it fit; at most `most`, if given."""
    num_blocks = _num_blocks(trial) if most is None else most
    if not num_blocks:
        return None
    with_swap = _swapping(change)

    def in_turn(number: int) -> SettingChange:
        swap = with_swap(number)
        return replace(swap, settings={**swap.settings, "levers.block_swap_prefetch": 0})

    already, prefetch = trial.found.experiment.levers.block_swap, trial.found.experiment.levers.block_swap_prefetch
    look = trial.fewest_that_fits(with_swap, num_blocks)
    if look is None and prefetch:
        # Slower, but without the memory of the blocks that are copied ahead.
        look = trial.fewest_that_fits(in_turn, num_blocks)
    return None if look is not None and look.change.settings["levers.block_swap"] <= already else look


def _num_blocks(trial: Trial) -> int:
    return 0 if trial.device.kind in _SHARED_MEMORY else sum(trial.found.subject.geometry.stacks)


def _swapping(change: SettingChange) -> Callable[[int], SettingChange]:
    """Returns the change with a number of swapped blocks."""
    return lambda number: replace(change, settings={**change.settings, **block_swap(number).settings})


def _smaller_input(
    trial: Trial, needed: Mapping[str, Any], saving: Mapping[str, Any], *, also_quantised: bool
) -> Iterator[Look]:
    """Yields smaller images or shorter videos, with the unchanged base or, if that is not enough, a quantised one."""
    is_video = trial.found.size.num_frames > 1
    smaller = list(fewer_frames(trial.found) if is_video else smaller_images(trial.found))
    quantised = quantised_bases(trial.found.experiment) if also_quantised else []
    bases: list[Mapping[str, Any]] = [{}, *(base.settings for base in quantised)]
    ways = [smaller]
    if is_video:
        small = list(smaller_images(trial.found))
        both = [replace(less, num_frames=short.num_frames) for less, short in product(small, smaller)]
        ways += [small, both]
    for base, way in product(bases, ways):
        found = trial.first_that_fits(_on_top((change.on_top_of(base) for change in way), needed, saving))
        if found is not None:
            yield found
            return


def _needed_for_caches(trial: Trial) -> dict[str, Any] | None:
    """Returns the settings needed to fill the caches, whatever the training step; None if nothing makes a cache fit."""
    found, needed = trial.found, dict[str, Any]()
    cures: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        (RunPhase.CACHE_TEXT, "quantize.text_encoders", ("int8", "nf4")),
        (RunPhase.CACHE_LATENTS, "levers.vae_tiling", (True,)),
    )
    for stretch, key, values in cures:
        if trial.fits_in(stretch, found):
            continue
        for value in values:
            changed = trial.changed(SettingChange("other", {**needed, key: value}))
            if changed is not None and trial.fits_in(stretch, changed):
                needed[key] = value
                break
        else:
            return None
    return needed


def _headroom(trial: Trial) -> Iterator[Look]:
    """Yields less recomputation, or a larger batch, as far as each fits."""
    experiment = trial.found.experiment
    yield from _found(trial.first_that_fits(less_checkpointing(experiment)))
    largest_first = reversed([c for c in larger_batches(experiment) if trial.quick_spare_bytes(c) > 0])
    yield from _found(trial.first_that_fits(largest_first))


def _with_settings(validation: ValidationMemory | None, trial: Trial) -> ValidationMemory | None:
    """Adds the setting that makes validation fit: tiled decoding, else no samples."""
    if validation is None or validation.verdict == "fits" or not trial.found.experiment.validation.prompts:
        return validation
    tiled = SettingChange("other", {"levers.vae_tiling": True})
    without = SettingChange("other", {"validate.prompts": ()})
    for change in (tiled, without):
        changed = trial.changed(change)
        judged = None if changed is None else validation_on(changed, trial.device)
        if judged is not None and judged.verdict == "fits":
            return validation.model_copy(update={"settings": change.words()})
    return validation


def _on_top(
    changes: Iterable[SettingChange], needed: Mapping[str, Any], saving: Mapping[str, Any]
) -> Iterator[SettingChange]:
    """Yields each change with the needed settings, then with all settings that add computation."""
    for change in changes:
        yield change.on_top_of(needed)
        if saving != needed:
            yield change.on_top_of(saving)


def _found(look: Look | None) -> Iterator[Look]:
    if look is not None:
        yield look


def _without_repeats(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Drops repeated sets of settings, and those that only add to an earlier one that fits."""
    kept: list[Remedy] = []
    for remedy in remedies:
        enough = [earlier.settings.items() for earlier in kept if earlier.verdict == "fits"]
        if not any(earlier <= remedy.settings.items() for earlier in enough):
            kept.append(remedy)
    return tuple(kept)
