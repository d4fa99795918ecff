"""What a person sees of the demonstration: a heading for each of its parts, and the progress of its trainings."""

from typing import TYPE_CHECKING

import typer

from foretune.api.demo import DemoObserver
from foretune.cli.progress import ProgressObserver

if TYPE_CHECKING:
    from foretune.api.plan import Plans

_HEADINGS = {
    1: "1. Does LoRA of FLUX.1-dev fit? Five cards, asked without one of them and without weights.",
    2: "2. A small FLUX that draws shapes learns to put a frame around them, three ways.",
    3: "\n3. Which way is best, and what is it worth?",
}


class DemoProgress(ProgressObserver, DemoObserver):
    """Progress of trainings, and the plan as a table."""

    def part(self, number: int) -> None:
        typer.secho(_HEADINGS[number], bold=True)

    def real_model_planned(self, plans: "Plans") -> None:
        from foretune.reports.terminal.plans import print_advice, print_verdicts
        from foretune.reports.terminal.tables import console

        out = console()
        print_verdicts(out, plans)
        print_advice(out, plans)
