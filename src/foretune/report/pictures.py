"""Sample pictures of runs, as part of the page. A budget keeps a page of many runs small, and says what it left out."""

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from foretune.analyse.evaluations import pictures_of
from foretune.analyse.run_data import RunData
from foretune.analyse.run_report import RunReport

MOST_BYTES = 3 * 2**20
"""Of all pictures of a page together, before they become text."""
_MOST_BYTES_EACH = 2**20
_MOST_SAMPLES = 4
"""Prompts that are shown of a run, before and after."""
_BOTH = "before-and-after"
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


@dataclass
class PictureBudget:
    """Takes pictures until there is no room; counts what was left out."""

    left_bytes: int = MOST_BYTES
    num_left_out: int = 0
    taken: list[str] = field(default_factory=list)

    def take(self, run: Path, file: str, caption: str) -> Picture | None:
        """The picture, or None where it is no PNG of this run directory, or there is no room for it."""
        path = (run / file).resolve()
        try:
            # A name in a file may lead anywhere; what is beside the run is not the run's.
            content = path.read_bytes() if path.is_relative_to(run.resolve()) else b""
        except OSError:
            self.num_left_out += 1
            return None
        if not content.startswith(_PNG) or len(content) > min(self.left_bytes, _MOST_BYTES_EACH):
            self.num_left_out += 1
            return None
        self.left_bytes -= len(content)
        return Picture(f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}", caption, file)


def grids(report: RunReport, run: RunData, budget: PictureBudget) -> list[Picture]:
    """The grids of a run's evaluation."""
    evaluation = report.evaluations.get(run.path)
    if evaluation is None:
        return []
    found = []
    there = pictures_of(run.path, evaluation)
    # Both models in one picture say all that a picture of each would.
    for path in [one for one in there if one.stem == _BOTH] or there:
        file = path.relative_to(run.path).as_posix()
        picture = budget.take(run.path, file, path.stem.replace("_", " ").replace("-", " "))
        if picture is not None:
            found.append(picture)
    return found


def before_and_after(run: RunData, budget: PictureBudget) -> list[tuple[str, Picture | None, Picture | None]]:
    """(prompt, first sample, last sample) for the first prompts of a run."""
    by_index: dict[int, dict[int, str]] = {}
    folder = run.path / "samples"
    for path in sorted(folder.glob("step-*.png")) if folder.is_dir() else ():
        named = _SAMPLE.match(path.name)
        if named:
            by_index.setdefault(int(named[2]), {})[int(named[1])] = f"samples/{path.name}"
    prompts = run.experiment.validation.prompts
    found = []
    for index in sorted(by_index)[:_MOST_SAMPLES]:
        steps = by_index[index]
        first, last = min(steps), max(steps)
        prompt = prompts[index] if index < len(prompts) else f"sample {index + 1}"
        before = budget.take(run.path, steps[first], f"After step {first}: {prompt}")
        after = budget.take(run.path, steps[last], f"After step {last}: {prompt}") if last > first else None
        if before is not None or after is not None:
            found.append((prompt, before, after))
    return found
