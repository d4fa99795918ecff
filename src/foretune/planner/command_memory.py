"""Judges the commands after a training on a device: whether the whole workflow fits, not only its training."""

from collections.abc import Iterator, Mapping
from typing import Any

from foretune.catalog.devices import Device
from foretune.choices.capabilities import objections
from foretune.choices.method import Adapter
from foretune.core.errors import UserError
from foretune.core.values.plan import CommandMemory, Plan, Verdict
from foretune.planner.commands import CommandPhases
from foretune.planner.host_memory import HostBudget, host_memory_of
from foretune.planner.knobs import SettingChange
from foretune.planner.overheads import usable_bytes
from foretune.planner.phase_memory import Phase
from foretune.planner.planning import Footprint, other_footprint
from foretune.planner.verdict import Judgement, judge

_VERDICTS: tuple[Verdict, ...] = ("fits", "tight", "does not fit")
_SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"levers.vae_tiling": True},
    {"quantize.text_encoders": "int8"},
    {"levers.vae_tiling": True, "quantize.text_encoders": "int8"},
    {"quantize.denoiser": "int8"},
    {"levers.vae_tiling": True, "quantize.denoiser": "int8"},
)
"""What may make a command fit, the smallest change first."""


def with_commands(plan: Plan, found: Footprint, device: Device, host: HostBudget | None) -> Plan:
    """Returns the plan with the commands that follow the training."""
    commands = tuple(_judged(command, found, device, host) for command in found.commands)
    if plan.verdict != "does not fit":
        commands = tuple(_with_settings(one, found, device, host) for one in commands)
    return plan.model_copy(update={"commands": commands})


def _judged(command: CommandPhases, found: Footprint, device: Device, host: HostBudget | None) -> CommandMemory:
    judged = {phase.name: _on_device(phase, found, device) for phase in command.phases if phase.events}
    deciding = [judged[phase.name] for phase in command.deciding if phase.name in judged]
    worst = max(deciding, key=_need, default=None)
    return CommandMemory(
        command=command.command,
        phases=tuple(phase.memory for phase in command.phases),
        worst_phase=command.worst.name,
        process_low_bytes=0 if worst is None else worst.process.low,
        process_bytes=0 if worst is None else worst.process.likely,
        process_high_bytes=0 if worst is None else worst.process.high,
        verdict="fits" if worst is None else worst.verdict,
        host=host_memory_of(None, command.deciding, device, host),
        left_out=tuple(
            phase.name
            for phase in command.phases
            if phase.name in command.optional and judged[phase.name].verdict == "does not fit"
        ),
    )


def _need(judged: Judgement) -> tuple[int, int]:
    return _VERDICTS.index(judged.verdict), judged.process.likely


def _on_device(phase: Phase, found: Footprint, device: Device) -> Judgement:
    return judge(
        phase.events,
        found.overhead_on(device),
        usable_bytes(device),
        error_share=found.error_share,
        replays=found.traces.replays,
    )


def _with_settings(command: CommandMemory, found: Footprint, device: Device, host: HostBudget | None) -> CommandMemory:
    """Adds the first settings with which it fits; without any, the first with which it is tight and was not."""
    if command.verdict == "fits":
        return command
    tight: dict[str, str] = {}
    for change in _changes(found):
        try:
            changed = other_footprint(found, change.applied(found.experiment), found.size)
        except UserError:
            continue
        (same,) = (one for one in changed.commands if one.command == command.command)
        verdict = _judged(same, changed, device, host).verdict
        if verdict == "fits":
            return command.model_copy(update={"settings": change.words(), "verdict_with_settings": verdict})
        if verdict == "tight" and command.verdict != "tight":
            tight = tight or change.words()
    if not tight:
        return command
    return command.model_copy(update={"settings": tight, "verdict_with_settings": "tight"})


def _changes(found: Footprint) -> Iterator[SettingChange]:
    """Yields changes that the experiment does not have and that go with it."""
    experiment = found.experiment
    is_dense = experiment.quantize.denoiser == "none" and isinstance(experiment.method, Adapter)
    for settings in _SETTINGS:
        change = SettingChange("other", settings)
        if ("quantize.denoiser" in settings and not is_dense) or change.without_idle(experiment) != change:
            continue
        applied, family = change.applied(experiment), found.subject.row.family_facts.name
        if not any(one.severity == "refused" for one in objections(applied, family, distilled=None, only_planned=True)):
            yield change
