"""What one configuration changed, where there is no other to rank it against."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from foretune.analyse.groups import Configuration
from foretune.analyse.recommending import Recommendation
from foretune.analyse.run_data import RunData
from foretune.core.units import measured_text
from foretune.core.values import Finding


def with_result(only: Configuration, made: Recommendation, against_base: Sequence[Finding]) -> Recommendation:
    """The same recommendation, with the change over the base model as its headline."""
    headline = against_base[0].sentence.removesuffix(".") if against_base else _by_loss(only)
    caveat = made.finding.caveat if against_base else None
    finding = made.finding.model_copy(update={"sentence": f"{headline}.", "caveat": caveat})
    return replace(made, headline=headline, detail="", finding=finding)


def held_out_ends(run: RunData) -> tuple[float, float] | None:
    """The held-out loss of the base model and after the last step; None where the run did not measure both."""
    if len(run.held_out_losses) < 2 or run.held_out_losses[0][0] != 0:  # noqa: PLR2004
        return None
    return run.held_out_losses[0][1], run.held_out_losses[-1][1]


def _by_loss(only: Configuration) -> str:
    steps = max((len(run.losses) for run in only.finished), default=0)
    ends = [pair for run in only.finished if (pair := held_out_ends(run)) is not None]
    if not ends:
        return f"{only.name} finished: {steps:,} steps"
    before, after = (measured_text(statistics.fmean(side), None, None, "") for side in zip(*ends, strict=True))
    runs = "one run" if len(ends) == 1 else f"mean of {len(ends)} runs"
    return f"{only.name}: held-out loss {before} before training, {after} after {steps:,} steps ({runs})"
