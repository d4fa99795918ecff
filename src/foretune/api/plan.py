"""`plan`: what fits, how large it is and what makes it fit, without weights and without a GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from foretune.api.live_steps import live_steps
from foretune.api.start import Changes, ExperimentLike, overrides_of
from foretune.api.terms import TermsTyped, check_spot_prices
from foretune.core.errors import ExperimentErrors, Mistakes, UserError
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.output_files import write_file
from foretune.core.values.plan import Plan

if TYPE_CHECKING:
    from foretune.catalog import Device
    from foretune.config import Asked
    from foretune.planner.asking import AdviceScope
    from foretune.planner.host_memory import HostBudget
    from foretune.planner.timing.terms import Terms

ALL = "all"
COMMON = "common"


@dataclass(frozen=True)
class Plans(Sequence[Plan]):
    """Plans in the order of the devices; of several models, model after model. A sequence of `Plan`."""

    groups: "tuple[tuple[Asked, tuple[Plan, ...]], ...]"
    """Each question with its plans."""
    refused: Mapping[str, UserError] = field(default_factory=dict)
    """Of `all` models, those that could not be planned, with the reason."""

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | Sequence[Plan]:
        return tuple(self)[index]

    def __len__(self) -> int:
        return sum(len(plans) for _, plans in self.groups)

    def __iter__(self) -> Iterator[Plan]:
        return (plan for _, plans in self.groups for plan in plans)

    def __str__(self) -> str:
        """What `foretune plan` prints."""
        from foretune.reports.terminal.plans import print_groups
        from foretune.reports.terminal.tables import as_text

        return as_text(lambda out: print_groups(out, self.groups, explain=False))

    def __repr__(self) -> str:
        models = {plan.model for plan in self}
        return f"<Plans: {len(self)} of {', '.join(sorted(models))}>"

    def _repr_html_(self) -> str:
        from foretune.reports.fragments import plans_fragment

        return plans_fragment(tuple(self))

    def page(self) -> str:
        """The plans as an HTML page of their own."""
        from foretune.reports.plan_page import plan_page
        from foretune.reports.question_text import question_text

        words = {plans[0].experiment: question_text(asked) for asked, plans in self.groups}
        return plan_page(tuple(self), words)

    def write_page(self, path: str | Path) -> None:
        write_file(Path(path), self.page())

    def to_mappings(self) -> list[dict[str, Any]]:
        """Plain data, one mapping for each plan."""
        return [plan.to_mapping() for plan in self]


def plan(
    target: ExperimentLike,
    changes: Changes | None = None,
    *,
    on: str | Sequence[str] = COMMON,
    prices: Mapping[str, float] | Sequence[str] | None = None,
    interconnect: str | Sequence[str] | None = None,
    spot: bool = False,
    interruptions_per_day: float | None = None,
    restart_wait: str | None = None,
    ram: str | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    expandable_segments: bool = False,
    live: bool = False,
    advice: "AdviceScope" = "menu",
    observer: Observer | None = None,
) -> Plans:
    """What fits, before anything is downloaded.

    Args:
        target: a model (`"flux.1-dev"`), an experiment file, its content as a mapping, a configuration of another
            trainer, or `"all"` models.
        changes: settings by dotted key, `{"method.kind": "lora", "method.rank": 32}`.
        on: devices: names (`"rtx-4090"`), sizes (`"16GiB"`), `"here"`, `"common"` or `"all"`. Behind a name,
            `":limit=20GiB"` leaves memory to other programs and `":pcie=4.0x8"` sets the link to the host.
        prices: US dollars for an hour of a device, `{"h100-sxm": 2.49}`; others have the catalogue's.
        interconnect: how several devices are connected: `"nvlink"` or `"pcie=4.0x16"` in a machine, `"400Gb/s"` between
            machines, for each device.
        spot: add the expected time and price on spot instances; `prices` are then theirs.
        interruptions_per_day: of one spot machine.
        restart_wait: until the next spot instance starts: `"10min"`.
        ram: also judge the host's memory: `"32GiB"`, or `"here"`.
        height: in pixels; without it, `data.resolution` decides.
        width: goes with `height`.
        frames: of a video; the model's own if left out.
        expandable_segments: as with `PYTORCH_ALLOC_CONF=expandable_segments:True`.
        live: record the step now instead of reading its shipped trace; needs `foretune[train]`.
        advice: settings that make it fit: `"none"`, the `"first"` to try, or the whole `"menu"`, which also says how
            to use memory that is left. For many devices, the menu takes longest.
        observer: receives progress.
    """
    observer = observer or Observer()
    overrides = overrides_of(changes)
    typed = TermsTyped(
        prices=prices,
        interconnect=interconnect,
        spot=spot,
        interruptions_per_day=interruptions_per_day,
        restart_wait=restart_wait,
    )
    devices, host, terms = devices_and_host(target, overrides, on, ram, typed, observer, is_live=live)
    check_spot_prices(terms, devices, any_is_enough=False)
    from foretune.planner.asking import PlanRequest, plan_everything

    request = PlanRequest(
        target=target if isinstance(target, Mapping) else str(target),
        overrides=overrides,
        height_px=height,
        width_px=width,
        num_frames=frames,
        expandable_segments=expandable_segments,
        always_live=live,
        advice=advice,
        host=host,
        terms=terms,
    )
    groups: list[tuple[Asked, tuple[Plan, ...]]] = []
    refused: dict[str, UserError] = {}

    def progress(what: str) -> None:
        observer.preparing(what, len(groups), 0)

    source = live_steps(observer, progress, needed=live)
    for asked, plans in plan_everything(request, devices, source, refused.__setitem__):
        if interconnect is not None and asked.experiment.parallel.devices == 1:
            raise UserError(
                "foretune plan --interconnect is for several devices. Run: foretune plan ... parallel.devices=8"
            )
        groups.append((asked, plans))
        note = asked.model.note
        if note is not None and f"model: {note}" not in asked.warnings:
            observer.message(f"Note: {note}")
        progress(f"planned {asked.experiment.model}")
    return Plans(tuple(groups), refused)


def reasons(refused: Mapping[str, UserError]) -> dict[str, list[str]]:
    """Models that could not be planned, by the reason."""
    found: dict[str, list[str]] = {}
    for model, error in refused.items():
        why = error.problems if isinstance(error, ExperimentErrors) else (str(error),)
        found.setdefault("; ".join(why), []).append(model)
    return found


def devices_and_host(
    target: ExperimentLike,
    overrides: tuple[str, ...],
    on: str | Iterable[str],
    ram: str | None,
    typed: TermsTyped,
    observer: Observer,
    *,
    is_live: bool,
) -> "tuple[list[Device], HostBudget | None, Terms]":
    """What `on`, `ram`, prices and links mean. Where they are wrong, reports with them what else is wrong."""
    from foretune.planner.asking import PlanRequest, check_question, devices_named
    from foretune.planner.host_memory import budget_named

    mistakes = Mistakes()
    names = on if isinstance(on, str) else ",".join(on)
    devices = mistakes.attempt(devices_named, names, lambda text: observer.message(f"Note: {text}"))
    host = None if ram is None else mistakes.attempt(budget_named, ram)
    terms = typed.terms(mistakes)
    if is_live:
        mistakes.attempt(require, "train", "Recording a step")
    if mistakes:
        asked = target if isinstance(target, Mapping) else str(target)
        check_question(PlanRequest(target=asked, overrides=overrides), mistakes)
    mistakes.raise_all()
    assert devices is not None, "nothing was wrong with them"
    return devices, host, terms
