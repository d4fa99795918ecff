"""What is looked at rather than read: profiles in words, samples as pictures."""

from collections.abc import Sequence

from foretune.analyse.diagnosis import diagnose, evidence_of
from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_report import RunReport, RunTask
from foretune.analyse.trace_digest import digest, newest_trace
from foretune.core.errors import UserError
from foretune.core.units import bytes_text
from foretune.reports.data_tables import Rows, TableColumn, TableRow, data_table
from foretune.reports.markup import Markup, join, tag
from foretune.reports.numbers import NOTHING, file_link
from foretune.reports.pictures import (
    MOST_BYTES,
    GridColumn,
    Picture,
    PictureBudget,
    SampleGrid,
    sample_grid,
    sheets_of,
)

_MOST_PROFILES = 4
_MOST_CONFIGURATIONS = 12
_MOST_SHEETS = 4


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
        found = digest(newest_trace(run.path), within=run.path)
        return [one.text for one in diagnose(evidence_of(run.path, found))]
    except (UserError, OSError, ValueError) as error:
        # A damaged trace does not stop the rest of the report.
        return [f"its trace cannot be read: {error}"]


def sample_section(report: RunReport, task: RunTask, budget: PictureBudget) -> list[Markup]:
    """One grid of the task's samples, and where more of them are; empty where there are none."""
    grid = sample_grid(report, task.configurations, budget)
    parts = [] if grid is None else [_grid_table(report, task, grid), tag("p", _grid_words(grid), class_="small")]
    in_grid = (
        set() if grid is None else {one.configuration.key for one in grid.columns if one.configuration is not None}
    )
    parts += _older_sheets(report, [one for one in task.configurations if one.key not in in_grid], budget)
    links = [
        join(f"{one.name}: ", (join(file_link(report.refs[run.path], file, file), " ") for file in files))
        for one in task.configurations
        for run in one.finished[:1]
        if (files := sheets_of(report, run))
    ]
    if links:
        more = (tag("li", link) for link in links[:_MOST_CONFIGURATIONS])
        parts.append(tag("p", "Larger sheets:", class_="small"))
        parts.append(tag("ul", more, class_="findings small"))
    return parts


def _older_sheets(report: RunReport, found: Sequence[Configuration], budget: PictureBudget) -> list[Markup]:
    """Of evaluations that kept no single images: base and run side by side, one prompt below another."""
    figures = []
    for one in found[:_MOST_SHEETS]:
        files = [file for run in one.finished[:1] for file in sheets_of(report, run)]
        file = next((file for file in files if file.endswith("/before-and-after.png")), files[0] if files else None)
        picture = None if file is None else budget.take(one.finished[0], file, f"{one.name}: base model, then the run")
        if picture is not None:
            image = tag("img", src=picture.source, alt=picture.caption)
            figures.append(tag("figure", image, tag("figcaption", picture.caption), class_="sheet"))
    return figures


def left_out_words(budget: PictureBudget) -> Markup | None:
    """How many pictures the page has no room for."""
    if not budget.num_left_out:
        return None
    words = (
        f"{budget.num_left_out} more pictures are left out: a page holds at most {bytes_text(MOST_BYTES)} of them. "
        "They are in the run directories."
    )
    return tag("p", words, class_="small")


def _grid_table(report: RunReport, task: RunTask, grid: SampleGrid) -> Markup:
    is_alone = len(task.configurations) == 1
    columns = [TableColumn("Prompt"), *(TableColumn(_heading(one, is_alone=is_alone)) for one in grid.columns)]
    rows = []
    for number, prompt in enumerate(grid.prompts):
        cells = [_picture_cell(report, column.pictures[number]) for column in grid.columns]
        rows.append(TableRow([prompt, *cells]))
    return data_table("Samples by prompt and model", columns, [Rows(rows)], class_="sample-grid")


def _heading(column: GridColumn, *, is_alone: bool) -> str:
    if column.configuration is None:
        return "Before: base model" if is_alone else "Base model"
    return "After training" if is_alone else f"{column.configuration.letter}: {column.configuration.label}"


def _grid_words(grid: SampleGrid) -> str:
    words = "Each row has the same prompt and seed. Small images are enlarged, one square for each pixel."
    if grid.num_prompts > len(grid.prompts):
        words += f" The first {len(grid.prompts)} prompts are shown."
    num_shown = sum(column.configuration is not None for column in grid.columns)
    if grid.num_configurations > num_shown:
        words += f" The first {num_shown} of {grid.num_configurations} configurations are shown."
    return words


def _picture_cell(report: RunReport, one: Picture | None) -> Markup:
    if one is None:
        return NOTHING
    width, height = one.shown_px or (None, None)
    image = tag(
        "img", src=one.source, alt=one.caption, width=width, height=height, class_="crisp" if one.is_enlarged else None
    )
    return file_link(report.refs[one.run.path], one.file, image)
