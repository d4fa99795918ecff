"""What is looked at rather than read: profiles in words, samples as pictures."""

from foretune.analyse.diagnosis import diagnose, evidence_of
from foretune.analyse.run_data import RunData
from foretune.analyse.run_report import RunReport
from foretune.analyse.trace_digest import digest, newest_trace
from foretune.core.errors import UserError
from foretune.core.units import bytes_text
from foretune.report.markup import Content, Markup, join, tag
from foretune.report.numbers import file_link
from foretune.report.pictures import MOST_BYTES, Picture, PictureBudget, before_and_after, grids

_MOST_PROFILES = 4
_MOST_TRACE_BYTES = 64 * 2**20
_MOST_CONFIGURATIONS = 12
_MOST_PICTURES_EACH = 4


def diagnoses(report: RunReport) -> tuple[list[Markup], int]:
    """What holds profiled runs back, in words; and how many profiles were not read."""
    profiled = [run for run in report.runs if any((run.path / "profile").glob("*.pt.trace.json*"))]
    found = []
    for run in profiled[:_MOST_PROFILES]:
        ref = report.refs[run.path]
        name = tag("a", ref.name, href=f"#{ref.anchor}")
        found += [tag("li", name, ": ", text) for text in _diagnosed(run)]
    return found, len(profiled[_MOST_PROFILES:])


def _diagnosed(run: RunData) -> list[str]:
    try:
        trace = newest_trace(run.path)
        if trace.stat().st_size > _MOST_TRACE_BYTES:
            size = bytes_text(trace.stat().st_size)
            return [f"its trace has {size}, too much to read for a page; `foretune profile` reads it"]
        return [one.text for one in diagnose(evidence_of(run.path, digest(trace)))]
    except (UserError, OSError, ValueError) as error:
        # A trace that was cut short takes nothing else from the report.
        return [f"its trace cannot be read: {error}"]


def picture_section(report: RunReport, budget: PictureBudget) -> Markup | None:
    """Samples before and after, of one run of each configuration, as far as there is room."""
    chosen = {task.recommendation.chosen.key for task in report.tasks if task.recommendation.chosen is not None}
    ordered = sorted(report.configurations, key=lambda one: one.key not in chosen)
    parts: list[Content] = []
    num_shown = 0
    for one in ordered:
        run = next((run for run in one.finished if _has_pictures(run)), None)
        if run is None:
            continue
        if num_shown >= _MOST_CONFIGURATIONS:
            budget.num_left_out += 1
            continue
        shown = _of_run(report, run, budget)
        if shown:
            ref = report.refs[run.path]
            source = tag("p", "From ", tag("a", ref.name, href=f"#{ref.anchor}"), ".", class_="small")
            parts += [tag("h3", one.label), source, *shown]
            num_shown += 1
    if not parts:
        return None
    if budget.num_left_out:
        words = (
            f"Pictures of {budget.num_left_out} more are left out: a page holds {bytes_text(MOST_BYTES)} at most, "
            f"of {_MOST_CONFIGURATIONS} configurations. They are in the run directories."
        )
        parts.append(tag("p", words, class_="small"))
    title = tag("h2", "Samples, before and after", id="samples-title")
    return tag("section", title, *parts, id="samples", aria_labelledby="samples-title")


def _has_pictures(run: RunData) -> bool:
    return any(any((run.path / folder).glob("*.png")) for folder in ("quality", "samples"))


def _of_run(report: RunReport, run: RunData, budget: PictureBudget) -> list[Markup]:
    ref = report.refs[run.path]
    made = [
        tag("figure", _image(one), tag("figcaption", file_link(ref, one.file, one.caption)), class_="grid-picture")
        for one in grids(report, run, budget)[:_MOST_PICTURES_EACH]
    ]
    pairs = before_and_after(run, budget)
    if pairs:
        cells = (
            tag(
                "figure",
                tag("div", (_image(one) for one in (before, after) if one is not None), class_="pair"),
                tag("figcaption", _pair_caption(prompt, before, after)),
            )
            for prompt, before, after in pairs
        )
        made.append(tag("div", cells, class_="samples"))
    return made


def _pair_caption(prompt: str, before: Picture | None, after: Picture | None) -> Markup:
    steps = [one.caption.split(":")[0].lower() for one in (before, after) if one is not None]
    return join(prompt, " (", ", ".join(steps), ")")


def _image(one: Picture) -> Markup:
    return tag("img", src=one.source, alt=one.caption)
