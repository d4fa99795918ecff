"""Sample images of runs, as part of the page. A budget keeps a page of many runs small, and says what it left out."""

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foretune.analyse.evaluations import EVALUATION_FILE, pictures_of
from foretune.analyse.groups import Configuration
from foretune.analyse.run_data import RunData
from foretune.analyse.run_report import RunReport
from foretune.core.input_files import RefusedFile, read_bytes
from foretune.core.values.evaluation import sample_file

MOST_BYTES = 3 * 2**20
"""Of all pictures of a page together, before they become text."""
_MOST_BYTES_EACH = 2**20
_MOST_PROMPTS = 6
_MOST_COLUMNS = 8
_LEAST_SIDE_PX = 128
"""Smaller images are shown larger, each pixel as a square: a 32 px image at 32 px shows nothing."""
_MOST_SIDE_PX = 256
_PNG = b"\x89PNG\r\n\x1a\n"
_SAMPLE = re.compile(r"^step-(\d+)-(\d+)\.png$")


@dataclass(frozen=True)
class Picture:
    """One picture that stands in the page itself."""

    source: str
    """A data: address."""
    caption: str
    file: str
    """Relative to the run directory."""
    run: RunData
    shown_px: tuple[int, int] | None
    """Width and height on the page."""
    is_enlarged: bool = False


@dataclass(frozen=True)
class PromptPictures:
    """The images of one prompt, as files of a run directory."""

    prompt: str
    before: str | None
    """Of the base model; None where there is none."""
    after: str


@dataclass(frozen=True)
class _Source:
    """Where the column of a configuration comes from."""

    configuration: Configuration
    run: RunData
    by_prompt: Mapping[str, PromptPictures]


@dataclass(frozen=True)
class GridColumn:
    """The images of one model, one for each prompt; None where there is none, or no room."""

    configuration: Configuration | None
    """None is the base model."""
    pictures: tuple[Picture | None, ...]


@dataclass(frozen=True)
class SampleGrid:
    """Prompts down, models across, the base first."""

    prompts: tuple[str, ...]
    columns: tuple[GridColumn, ...]
    num_prompts: int
    """Of all, shown or not."""
    num_configurations: int
    """With samples, shown or not."""


@dataclass
class PictureBudget:
    """Takes pictures until there is no room; counts what was left out."""

    left_bytes: int = MOST_BYTES
    num_left_out: int = 0
    taken: list[str] = field(default_factory=list)

    def take(self, run: RunData, file: str, caption: str) -> Picture | None:
        """The picture, or None where it is no PNG of this run directory, or there is no room for it."""
        try:
            # A name in a file may lead anywhere; what is beside the run is not the run's.
            content = read_bytes(run.path / file, _MOST_BYTES_EACH, within=run.path)
        except (OSError, ValueError, RefusedFile):
            self.num_left_out += 1
            return None
        if not content.startswith(_PNG) or len(content) > self.left_bytes:
            self.num_left_out += 1
            return None
        self.left_bytes -= len(content)
        source = f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
        size_px = _size_px(content)
        shown_px = None if size_px is None else _shown_px(size_px)
        is_enlarged = size_px is not None and shown_px is not None and shown_px[0] > size_px[0]
        return Picture(source, caption, file, run, shown_px, is_enlarged)


def sample_grid(report: RunReport, configurations: Sequence[Configuration], budget: PictureBudget) -> SampleGrid | None:
    """The samples of one run of each configuration on the same prompts, beside the base; None where there are none."""
    sources = [source for one in configurations if (source := _source(report, one)) is not None]
    prompts = list(dict.fromkeys(prompt for source in sources for prompt in source.by_prompt))
    shown, columns = prompts[:_MOST_PROMPTS], sources[:_MOST_COLUMNS]
    before: list[Picture | None] = []
    after: dict[str, list[Picture | None]] = {source.configuration.key: [] for source in columns}
    for prompt in shown:
        # Row by row, so that what there is room for is whole rows.
        having = [source for source in columns if prompt in source.by_prompt]
        first = next(((source.run, file) for source in having if (file := source.by_prompt[prompt].before)), None)
        before.append(None if first is None else budget.take(*first, f"base model: {prompt}"))
        for source in columns:
            file = source.by_prompt[prompt].after if source in having else None
            name = f"{source.configuration.name}: {prompt}"
            after[source.configuration.key].append(None if file is None else budget.take(source.run, file, name))
    if not any(picture for pictures in after.values() for picture in pictures):
        return None
    made = [GridColumn(source.configuration, tuple(after[source.configuration.key])) for source in columns]
    base = [GridColumn(None, tuple(before))] if any(before) else []
    return SampleGrid(tuple(shown), (*base, *made), len(prompts), len(sources))


def _source(report: RunReport, one: Configuration) -> _Source | None:
    """The first finished run of a configuration that has samples."""
    for run in one.finished:
        found = _sampled(report, run)
        if found:
            return _Source(one, run, {each.prompt: each for each in found})
    return None


def sheets_of(report: RunReport, run: RunData) -> list[str]:
    """The larger grids of a run's evaluation, as files of its directory."""
    evaluation = report.evaluations.get(run.path)
    found = () if evaluation is None else pictures_of(run.path, evaluation)
    inside = [path for path in found if path.resolve().is_relative_to(run.path.resolve())]
    return [path.relative_to(run.path).as_posix() for path in inside]


def _sampled(report: RunReport, run: RunData) -> list[PromptPictures]:
    """By the evaluation, where it kept single images; else as the training itself sampled."""
    return _evaluated(report, run) or _validated(run)


def _evaluated(report: RunReport, run: RunData) -> list[PromptPictures]:
    evaluation = report.evaluations.get(run.path)
    prompts = () if evaluation is None else evaluation.settings.get("prompts") or ()
    found = []
    for number, prompt in enumerate(prompts):
        before, after = (
            (EVALUATION_FILE.parent / sample_file(column, number)).as_posix() for column in ("base", "run")
        )
        if not (run.path / after).is_file():
            break
        found.append(PromptPictures(str(prompt), before if (run.path / before).is_file() else None, after))
    return found


def _validated(run: RunData) -> list[PromptPictures]:
    by_index: dict[int, dict[int, str]] = {}
    folder = run.path / "samples"
    for path in sorted(folder.glob("step-*.png")) if folder.is_dir() else ():
        named = _SAMPLE.match(path.name)
        if named:
            by_index.setdefault(int(named[2]), {})[int(named[1])] = f"samples/{path.name}"
    prompts = run.experiment.validation.prompts
    found = []
    for index, steps in sorted(by_index.items()):
        prompt = prompts[index] if index < len(prompts) else f"sample {index + 1}"
        last = max(steps)
        found.append(PromptPictures(prompt, steps.get(0) if last else None, steps[last]))
    return found


def _size_px(png: bytes) -> tuple[int, int] | None:
    header = png[16:24]
    if len(header) < 8:  # noqa: PLR2004
        return None
    width, height = struct.unpack(">II", header)
    return (width, height) if width and height else None


def _shown_px(size_px: tuple[int, int]) -> tuple[int, int]:
    """Small images by a whole factor, so that each pixel becomes a square; large ones shrunk."""
    side = max(size_px)
    if side < _LEAST_SIDE_PX:
        times = -(-_LEAST_SIDE_PX // side)
        return size_px[0] * times, size_px[1] * times
    share = min(1.0, _MOST_SIDE_PX / side)
    return max(1, round(size_px[0] * share)), max(1, round(size_px[1] * share))
