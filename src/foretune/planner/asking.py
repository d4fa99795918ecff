"""Plans for a request: an experiment file, a model or all models, on some devices or all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.catalog.devices import Device, cards_of
from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference, read_json, resolve_model
from foretune.choices.optimizers import FOUND_LR_FACTOR, OPTIMIZER_SPECS
from foretune.choices.step_form import NO_HABITS, Numerics, TrainerHabits
from foretune.config.overrides import apply_overrides, parse_overrides
from foretune.config.reading import Asked, read_experiment, understand
from foretune.config.target import is_experiment_file, starting_mapping, understand_named
from foretune.core.errors import MissingExtra, Mistakes, UserError
from foretune.core.values.plan import Plan
from foretune.planner.advice import with_advice
from foretune.planner.command_memory import with_commands
from foretune.planner.device_requests import requested_devices
from foretune.planner.host_memory import HostBudget
from foretune.planner.overheads import usable_bytes
from foretune.planner.planning import Footprint, Subject, footprint, plan_on
from foretune.planner.run_or_runs import with_run_or_runs
from foretune.planner.sizing import size_of, with_default_targets
from foretune.planner.timing.terms import PUBLISHED, Terms
from foretune.planner.traces import LiveTracer, Traces, is_at_hand
from foretune.trace.shipped import Geometry, geometries

if TYPE_CHECKING:
    from foretune.config.from_trainers.detecting import Found

AdviceScope = Literal["none", "first", "menu"]
"""Which settings that make a run fit to report: none, the first that an expert would try, or the whole menu."""
_FEW_DEVICES = 2
ALL = "all"
COMMON = "common"
COMMON_CARDS = ("rtx-3080-10gb", "rtx-3060", "rtx-4080", "rtx-4090", "rtx-5090", "l40s", "h100-sxm")
"""One card of each common memory size: 10, 12, 16, 24, 32, 48 and 80 GB."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A plan request as the user typed it."""

    target: str | Mapping[str, Any]
    """A model, an experiment file, `all`, or the content of an experiment file."""
    overrides: tuple[str, ...] = ()
    height_px: int | None = None
    width_px: int | None = None
    num_frames: int | None = None
    expandable_segments: bool = False
    always_live: bool = False
    host_numerics: bool = False
    """Whether to record steps with a CPU's numerics instead of an accelerator's."""
    host_context_bytes: int | None = None
    """Memory that this process already uses, if the plan is for it."""
    advice: AdviceScope = "menu"
    host: HostBudget | None = None
    """Available host memory; None gives no verdict on it."""
    terms: Terms = PUBLISHED
    """Speeds and prices of devices."""


class LiveSource(Protocol):
    """Information about a model that requires torch."""

    def tracer(self, model: ModelReference) -> LiveTracer:
        """Returns a tracer that records steps of a model."""
        ...

    def described(self, model: ModelReference) -> tuple[ModelComponent, Geometry]:
        """Describes a model from its own configuration."""
        ...


def devices_named(text: str, say: Callable[[str], None] = lambda _: None) -> list[Device]:
    """Parses `common`, `all` (least memory first), or names separated by commas.

    A name may also be a size (24GiB) or `here`. `say` is called with the interpretation of an inexact name.
    """
    if text.strip() == ALL:
        return sorted(catalog.devices().values(), key=lambda device: (usable_bytes(device), device.name))
    if text.strip() == COMMON:
        return [catalog.devices()[name] for name in COMMON_CARDS]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("No device was named. Run: foretune plan ... --on rtx-4090,h100-sxm, or --on all")
    mistakes = Mistakes()
    found: list[Device] = []
    for name in dict.fromkeys(names):
        mistakes.attempt(found.extend, requested_devices(name, say))
    mistakes.raise_all()
    return list({device.name: device for device in found}.values())


def plan_everything(
    request: PlanRequest,
    devices: Sequence[Device],
    live: LiveSource | None,
    refused: Callable[[str, UserError], None] | None = None,
) -> Iterator[tuple[Asked, tuple[Plan, ...]]]:
    """Yields the plans of each experiment, in the order of the devices.

    With `all` models, one that cannot be planned does not stop the others: `refused` is called with its name and the
    reason. If every model is refused, the first reason is raised.
    """
    is_all = request.target == ALL
    first_error: UserError | None = None
    num_planned = 0
    targets: list[str | Mapping[str, Any]] = [*catalog.denoisers()] if is_all else [request.target]
    for target in targets:
        try:
            asked = asked_of(replace(request, target=target))
            plans = plan_question(asked, request, devices, live)
        except UserError as error:
            if not is_all or refused is None:
                raise
            first_error = first_error or error
            refused(str(target), error)
            continue
        num_planned += 1
        yield asked, plans
    if first_error is not None and not num_planned:
        raise first_error


def plan_question(
    asked: Asked, request: PlanRequest, devices: Sequence[Device], live: LiveSource | None
) -> tuple[Plan, ...]:
    """Plans one experiment on every device."""
    subject = find_subject(asked.model, live)
    # Traces are stored under the catalogue's name, wherever the model is.
    experiment = with_default_targets(asked.experiment.model_copy(update={"model": subject.row.name}), subject.geometry)
    size = size_of(
        experiment,
        subject.geometry,
        height_px=request.height_px,
        width_px=request.width_px,
        num_frames=request.num_frames,
    )
    traces = Traces(live.tracer(asked.model) if live is not None else None, always_live=request.always_live)
    habits = NO_HABITS if asked.origin is None else asked.origin.habits
    if not is_at_hand(traces, experiment, size, subject.geometry, habits=habits):
        # A step with habits can be read from a trace, but not recorded here.
        habits = NO_HABITS if habits == NO_HABITS else replace(NO_HABITS, keeps_gradients=habits.keeps_gradients)
    by_host: dict[bool, Footprint] = {}
    plans = []
    everything = list(catalog.devices().values())
    for device in devices:
        _check_cards(device, experiment)
        on_host = device.kind == "cpu"
        if on_host not in by_host:
            numerics: Numerics = "cpu" if on_host and (request.host_numerics or request.always_live) else "cuda"
            by_host[on_host] = footprint(
                experiment,
                subject,
                size,
                traces,
                trains_on_host=on_host,
                numerics=numerics,
                context_bytes=request.host_context_bytes if on_host else None,
                habits=habits,
            )
        found = by_host[on_host]
        segments = request.expandable_segments and not device.pages_to_host
        plan = plan_on(found, device, expandable_segments=segments, host=request.host, terms=request.terms)
        plan = with_run_or_runs(plan, found, device, request.terms)
        # With many devices, the user wants to know which one fits, not how to use free memory or what comes afterwards.
        is_one_of_few = len(devices) <= _FEW_DEVICES
        if asked.origin is None and is_one_of_few:
            plan = with_commands(plan, found, device, request.host)
        plan = plan.model_copy(update={"experiment": asked.experiment.whole_hash(), **_of_origin(asked, plan, habits)})
        same_kind = [other for other in everything if (other.kind == "cpu") == on_host]
        if request.advice != "none":
            plan = with_advice(
                plan,
                found,
                device,
                same_kind,
                has_headroom=is_one_of_few,
                only_first=request.advice == "first",
                host=request.host,
                terms=request.terms,
            )
        plans.append(plan)
    return tuple(plans)


def _check_cards(device: Device, experiment: Experiment) -> None:
    """Raises where cards of one machine are named, and the experiment is not for as many devices."""
    num_cards, num_devices = len(cards_of(device)), experiment.parallel.devices
    if 1 < num_cards != num_devices:
        raise UserError(
            f"{device.name} are {num_cards} devices, and parallel.devices is {num_devices}. Run: foretune plan ... "
            f"parallel.devices={num_cards}"
        )


def _of_origin(asked: Asked, plan: Plan, habits: TrainerHabits) -> dict[str, Any]:
    """Returns what a plan of another program's training adds to its assumptions and to what is not counted."""
    origin = asked.origin
    if origin is None:
        return {}
    left = origin.habits.in_step_of(asked.experiment) != habits.in_step_of(asked.experiment)
    unlike = (
        *origin.unimitated,
        *(
            ["the dense copies of weights or inputs that torchao's own autograd stores: no trace of such a step ships"]
            if left
            else []
        ),
    )
    return {
        "assumptions": (f"as {origin.title} runs {origin.file}", *plan.assumptions, *origin.assumed),
        "notes": (*plan.notes, *unlike),
    }


def find_subject(model: ModelReference, live: LiveSource | None) -> Subject:
    """Returns the catalogue's row of a model: by name, by repository, or by an equal configuration."""
    row = _row(model)
    if row is not None:
        return Subject(row=row, geometry=geometries()[row.name])
    if model.kind == "hub":
        raise UserError(
            f"{model.asked} is not in the catalogue, and planning downloads nothing. Run: foretune list models, or "
            "point `model` at a local folder in the diffusers layout"
        )
    if live is None:
        raise MissingExtra(f"Planning {model.asked}, which is not in the catalogue,", "train")
    row, geometry = live.described(model)
    return Subject(row=row, geometry=geometry)


def _row(model: ModelReference) -> ModelComponent | None:
    rows = catalog.denoisers()
    if model.kind == "catalogue":
        return rows[model.asked]
    if model.kind == "hub":
        return next((row for row in rows.values() if row.hub_repo == model.repo), None)
    assert model.folder is not None
    assert model.family is not None, "a folder without a known pipeline is refused"
    path = model.folder / catalog.family_facts(model.family).denoiser_part / "config.json"
    if not path.is_file():
        return None
    config = _essential(read_json(path))
    return next((row for row in rows.values() if _essential(dict(row.config)) == config), None)


def _essential(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith("_")}


def check_question(request: PlanRequest, mistakes: Mistakes) -> None:
    """Adds what is wrong with a request to `mistakes`; for `all`, only what is wrong with every model."""
    if request.target == ALL:
        parse_overrides(request.overrides, mistakes)
    else:
        mistakes.attempt(asked_of, request)


def _refuse_two_sizes(request: PlanRequest) -> None:
    """Raises for a size that is requested twice: an option would win over the setting that is typed beside it."""
    for option, key in ((request.height_px, "data.resolution"), (request.num_frames, "data.num_frames")):
        if option is not None and any(override.startswith(f"{key}=") for override in request.overrides):
            raise UserError(f"{key} is also requested by an option of `foretune plan`. Leave out one of the two.")


def asked_of(request: PlanRequest) -> Asked:
    """Returns the experiment of a request: from a file, or as `foretune init` would write it for a model."""
    _refuse_two_sizes(request)
    if isinstance(request.target, Mapping):
        mapping = apply_overrides(dict(request.target), request.overrides)
        return understand(mapping, source=None, only_planned=True)
    path = Path(request.target)
    if path.is_file():
        from foretune.config.from_trainers.detecting import find  # takes a tenth of all imports

        found = find(path)
        if found is not None:
            return _asked_of_another(path, found, request.overrides)
    if is_experiment_file(path):
        return read_experiment(path, request.overrides, only_planned=True)
    mistakes = Mistakes()
    reference = mistakes.attempt(resolve_model, request.target)
    mapping = starting_mapping(request.target, reference, request.overrides, mistakes, has_native_size=True)
    if any(mapping["optimizer"].get("kind") == spec.name for spec in OPTIMIZER_SPECS.values() if spec.finds_lr):
        # A question about memory need not name the factor.
        mapping["optimizer"].setdefault("lr", FOUND_LR_FACTOR)
    return understand_named(mapping, reference, mistakes, only_planned=True)


def _asked_of_another(path: Path, found: "Found", overrides: Sequence[str]) -> Asked:
    """Returns the experiment of another trainer's configuration, as that program runs it."""
    from foretune.config.from_trainers.importing import translate_found

    model = next((text.partition("=")[2] for text in overrides if text.startswith("model=")), None)
    translated = translate_found(path, found, None if model is None else resolve_model(model).asked)
    mapping = apply_overrides(translated.planned(), tuple(text for text in overrides if not text.startswith("model=")))
    asked = understand(mapping, source=None, only_planned=True)
    accepts = bool(translated.mapping.get("accept"))
    # The catalogue's model may be the distilled one of two that are alike.
    warnings = tuple(text for text in asked.warnings if accepts or "distilled" not in text)
    return replace(asked, warnings=warnings, origin=translated.origin(path.name))
