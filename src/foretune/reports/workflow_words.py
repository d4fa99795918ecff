"""The whole workflow of a plan in sentences: which phase decides, and whether what follows the training fits."""

from collections.abc import Iterator, Sequence

from foretune.core.units import memory_text
from foretune.core.values.plan import CommandMemory, Plan
from foretune.reports.remedy_words import settings_text


def workflow_lines(plans: Sequence[Plan]) -> Iterator[str]:
    """Yields the deciding phases of a single plan, and what does not fit after a training that does.

    Nothing is added to a training that does not fit: with settings that make it fit, other phases decide.
    """
    is_single = len(plans) == 1
    for plan in plans:
        if plan.verdict == "does not fit":
            continue
        if is_single and plan.commands:
            yield _deciding(plan)
            yield from _after(plan)
        for verdict in ("tight", "does not fit") if is_single else ("does not fit",):
            yield from _of_verdict(plan, verdict)
        for one in plan.commands if is_single else ():
            if one.left_out:
                yield f"The check of an export does not fit on {plan.device}: images are not compared, files are."


def misfits(plan: Plan) -> tuple[CommandMemory, ...]:
    """Returns the commands that do not fit the device after a training that does."""
    if plan.verdict == "does not fit":
        return ()
    return tuple(command for command in plan.commands if command.verdict == "does not fit")


def _deciding(plan: Plan) -> str:
    """Of the device's memory, the training decides unless something after it takes more; so for the host's."""
    device = [(plan.process_bytes, plan.worst_phase)]
    device += [(one.process_bytes, f"{one.worst_phase} in {one.command}") for one in plan.commands]
    most_bytes, name = max(device, key=lambda pair: pair[0])
    text = f"Peak on the device: {name} ({memory_text(most_bytes)})."
    if plan.host is None:
        return text
    host = [(plan.host.likely_bytes, plan.host.peak_phase)]
    host += [
        (one.host.likely_bytes, f"{one.host.peak_phase} in {one.command}")
        for one in plan.commands
        if one.host is not None
    ]
    most_bytes, name = max(host, key=lambda pair: pair[0])
    return f"{text} Peak of host memory: {name} ({memory_text(most_bytes)})."


def _after(plan: Plan) -> Iterator[str]:
    needs = {one.command: _needs(one) for one in plan.commands}
    by_need = {need: _listed([name for name in needs if needs[name] == need]) for need in needs.values()}
    yield f"After the training: {'; '.join(f'{names} {need}' for need, names in by_need.items())}."


def _needs(command: CommandMemory) -> str:
    needs = [memory_text(command.process_bytes)] if command.process_bytes else []
    if command.host is not None:
        verdict = "" if command.host.verdict in (None, "fits") else f" ({command.host.verdict})"
        needs.append(f"{memory_text(command.host.likely_bytes)} of host memory{verdict}")
    return ", ".join(needs) or "no device memory"


def _of_verdict(plan: Plan, verdict: str) -> Iterator[str]:
    """Yields one line for the commands of a verdict, and one for settings that change it."""
    commands = [command for command in plan.commands if command.verdict == verdict]
    if not commands:
        return
    worst = max(commands, key=lambda command: command.process_bytes)
    names = _listed([command.command for command in commands])
    state = {"tight": "is tight", "does not fit": "does not fit"}[verdict]
    yield f"{names.capitalize()} {state} on {plan.device}: {memory_text(worst.process_bytes)} in {worst.worst_phase}."
    if worst.settings:
        result = "fits" if worst.verdict_with_settings == "fits" else "is tight"
        yield f"  With {settings_text(worst.settings)} it {result}."


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)
