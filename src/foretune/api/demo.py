"""`demo`: from a forecast to a report in three minutes, on a laptop's CPU."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.executing import opened_executor
from foretune.api.live_steps import LiveSteps
from foretune.api.plan import Plans, plan
from foretune.api.report import Report, report
from foretune.api.start import import_libraries
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.studies.demo.running import DemoRun

CARDS = ("rtx-3060", "rtx-4090", "l40s", "a100-80gb-sxm", "h100-sxm")
_TITLE = "Foretune demo: a small FLUX learns a style"


@dataclass(frozen=True)
class Demo:
    """What the demonstration made."""

    plans: Plans
    plan_page: Path
    trained: "DemoRun"
    report: Report
    page: Path

    @property
    def num_failed(self) -> int:
        return sum(one.problem is not None for one in self.trained.done)


class DemoObserver(Observer):
    """Also hears when a part of the demonstration begins, and gets the plans of the first one."""

    def part(self, number: int) -> None:
        """1: the plan, 2: the trainings, 3: the report."""

    def real_model_planned(self, plans: Plans) -> None:
        """Part 1 is done."""


def demo(folder: str | Path = "foretune-demo", *, observer: DemoObserver | None = None) -> Demo:
    """Plans FLUX.1-dev on five cards, fine-tunes a small FLUX three ways, evaluates and reports.

    Args:
        folder: where everything is written.
        observer: receives progress, and hears when a part begins.
    """
    require("train", "The demonstration")
    observer = observer or DemoObserver()
    folder, begin_s = Path(folder), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    observer.part(1)
    plans = plan("flux.1-dev", {"method.kind": "lora"}, on=CARDS)
    plan_page = folder / "plan.html"
    plans.write_page(plan_page)
    observer.real_model_planned(plans)
    observer.part(2)
    is_busy = import_libraries(
        observer, "foretune.studies.demo.running", "foretune.training.forecast", warns_if_busy=True
    )
    from foretune.studies.demo.running import run_demo
    from foretune.training.forecast import plan_here

    live = LiveSteps(observer)
    forecast = partial(plan_here, live=live, tell=observer.message)
    with opened_executor("local") as executor:
        made = run_demo(folder, observer, forecast, executor, begin_s=begin_s, is_busy=is_busy)
    observer.part(3)
    page = folder / "report.html"
    return Demo(plans, plan_page, made, report([made.folder], page, title=_TITLE), page)
