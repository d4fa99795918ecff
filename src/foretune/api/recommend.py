"""`recommend`: the cheapest, fastest or smallest way to run a training, among devices and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.live_steps import live_steps
from foretune.api.plan import ALL, devices_and_host
from foretune.api.start import Changes, ExperimentLike, overrides_of
from foretune.api.terms import TermsTyped, check_spot_prices
from foretune.core.errors import Refused, UserError
from foretune.core.observer import Observer
from foretune.core.output_files import write_file

if TYPE_CHECKING:
    from foretune.config.reading import Asked
    from foretune.core.values.plan import Plan
    from foretune.planner.search.searching import Answer, Choice


@dataclass(frozen=True)
class Recommended:
    """The best configuration that was found, with its plan."""

    asked: "Asked"
    answer: "Answer"

    @property
    def plan(self) -> "Plan":
        """Of the recommended configuration."""
        return self.answer.best.plan

    @property
    def settings(self) -> dict[str, Any]:
        """By key of the experiment: what differs from the request."""
        return dict(self.answer.best.settings)

    def __str__(self) -> str:
        from foretune.reports.terminal.recommendation import print_recommendation
        from foretune.reports.terminal.tables import as_text

        return as_text(lambda out: print_recommendation(out, self.asked, self.answer))

    def experiment_text(self) -> str:
        """The experiment file of the recommended configuration."""
        from foretune.reports.recommended_file import experiment_text

        return experiment_text(self.asked, self.answer)

    def page(self) -> str:
        """An HTML page with the plot of time against money."""
        from foretune.reports.search_page import search_page

        return search_page(self.asked, self.answer)

    def write_page(self, path: str | Path) -> None:
        write_file(Path(path), self.page())

    def to_mapping(self) -> dict[str, Any]:
        """Plain data."""
        found = self.answer
        return {
            "goal": found.goal,
            "num_options": found.num_options,
            "num_timed": found.num_timed,
            "num_replayed": found.num_replayed,
            "best": _mapping(found.best),
            "runner_up": None if found.runner_up is None else _mapping(found.runner_up),
            "run_or_runs": None if found.run_or_runs is None else found.run_or_runs.model_dump(mode="json"),
            "samples_per_step": found.num_samples,
            "devices": list(found.counts),
            "skipped_devices": list(found.skipped_counts),
            "front": [_mapping(choice) for choice in found.front],
            "left_out": {reason: list(names) for reason, names in found.left_out.items()},
            "without_time": dict(found.without_time),
        }


def recommend(
    target: ExperimentLike,
    changes: Changes | None = None,
    *,
    goal: str = "cheapest",
    on: str | Sequence[str] = ALL,
    num_devices: str | Sequence[int] | None = None,
    deadline: str | None = None,
    budget: str | float | None = None,
    min_batch: int = 1,
    prices: Mapping[str, float] | Sequence[str] | None = None,
    interconnect: str | Sequence[str] | None = None,
    spot: bool = False,
    interruptions_per_day: float | None = None,
    restart_wait: str | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    file: str | Path | None = None,
    draws: bool = False,
    observer: Observer | None = None,
) -> Recommended:
    """Searches devices, batch, accumulation, checkpointing, block swap, quantisation and weights for what is best.

    Args:
        target: a model (`"flux.1-dev"`), an experiment file, or its content as a mapping.
        changes: settings by dotted key; the search leaves these as they are.
        goal: `"cheapest"`, `"fastest"` or `"smallest"`, the least memory of all its devices.
        on: devices, as for `plan`.
        num_devices: how many of a device: `(1, 2, 4, 8)`, which is the default, or `"1,2"`. The samples of an optimizer
            step stay the same.
        deadline: the longest time of the whole job: `"6h"`, `"90min"`.
        budget: the highest price of the whole job in US dollars: `20` or `"20usd"`.
        min_batch: the smallest batch of a forward pass on one device.
        prices: US dollars for an hour of a device, `{"h100-sxm": 2.49}`; others have the catalogue's.
        interconnect: how several devices are connected, as for `plan`.
        spot: search by the expected time and price on spot instances; `prices` are then theirs.
        interruptions_per_day: of one spot machine.
        restart_wait: until the next spot instance starts: `"10min"`.
        height: in pixels; without it, `data.resolution` decides.
        width: goes with `height`.
        frames: of a video; the model's own if left out.
        file: where to write the experiment file; nothing is written without it.
        draws: also time configurations for the plot of `Recommended.page`, which takes a few seconds more.
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
    devices, _, terms = devices_and_host(target, overrides, on, None, typed, observer, is_live=False)
    check_spot_prices(terms, devices, any_is_enough=True)
    from foretune.planner.asking import PlanRequest
    from foretune.planner.search.asking import search_question, sought_of

    if file is not None and Path(file).exists():
        raise Refused(f"{file} exists already. Choose another name")
    request = PlanRequest(
        target=target if isinstance(target, Mapping) else str(target),
        overrides=overrides,
        height_px=height,
        width_px=width,
        num_frames=frames,
        terms=terms,
    )
    if request.target == ALL:
        raise UserError("A search is for one model. Run: foretune plan flux.1-dev --goal cheapest")
    budget_text = None if budget is None else str(budget)
    counts = num_devices if num_devices is None or isinstance(num_devices, str) else ",".join(map(str, num_devices))
    sought = sought_of(
        request, goal=goal, deadline=deadline, budget=budget_text, min_batch=min_batch, num_devices=counts
    )
    source = live_steps(observer, lambda what: observer.preparing(what, 0, 0), needed=False)
    asked, answer = search_question(request, sought, devices, source, draws=draws)
    found = Recommended(asked, answer)
    if file is not None:
        write_file(Path(file), found.experiment_text())
    return found


def _mapping(choice: "Choice") -> dict[str, Any]:
    return {"settings": dict(choice.words), "plan": choice.plan.to_mapping()}
