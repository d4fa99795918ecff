"""A report in a few sentences: what its page says first."""

from collections.abc import Iterator

from foretune.analyse.run_report import RunReport

_MOST_LINES = 8


def report_lines(found: RunReport) -> Iterator[str]:
    """What the page says first."""
    for task in found.tasks:
        finding = task.recommendation.finding
        yield finding.sentence if len(found.tasks) == 1 else f"{task.model}: {finding.sentence}"
        if finding.caveat:
            yield f"! {finding.caveat}"
        for one in (*task.against_base[:_MOST_LINES], *task.missing[:_MOST_LINES]):
            yield one.sentence
    if found.failed:
        yield f"! {len(found.failed)} of {len(found.runs)} runs did not finish"
